r"""An example of a small transformer with AdamW: it reads images of digits row by row (scikit-learn's digits).

In this directory:

    top-server --task small_transformer:Rows --learning-rate 0.003 --clients 8 --beta 2 --local-nodes 2 \
      --listen 127.0.0.1:0
"""

from typing import Any

import torch
from sklearn.datasets import load_digits

from fedgsp import ClientData, Split, Task, partition


class Reader(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(8, width)
        self.places = torch.nn.Parameter(0.1 * torch.randn(8, width))
        layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encode = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.classify(self.encode(self.embed(x) + self.places).mean(1))
        return found


class Rows(Task):
    num_classes = 10

    def __init__(self, clients: int = 8, width: int = 32, alpha: float = 0.5, seed: int = 0) -> None:
        digits = load_digits()
        self.x, self.y = digits.images.astype("float32") / 16, digits.target  # (1797, 8, 8) and (1797,)
        self.num_clients, self.width = clients, width
        self.parts = partition(self.y, "dirichlet", clients=clients, alpha=alpha, seed=seed)

    def model(self) -> torch.nn.Module:
        return Reader(self.width)

    def data(self, client: int) -> ClientData:
        own = self.parts[client]
        held_out = len(own) // 5
        train, test = own[held_out:], own[:held_out]
        return ClientData(Split(self.x[train], self.y[train]), Split(self.x[test], self.y[test]))

    def optimizer(self, parameters: Any, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.01)
