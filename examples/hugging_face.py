r"""An example of a data set of Hugging Face: texts with labels, which a column divides among clients.

FOLDER is what `Dataset.save_to_disk` wrote, with columns text, label and site. Each site is a client, and a quarter of
its rows are for testing. Needs `pip install datasets`. In this directory, for two sites:

    top-server --task hugging_face:Texts --task-option data=FOLDER --task-option sites=north,south \
      --optimizer adamw --learning-rate 0.01 --clients 2 --beta 1 --local-nodes 2 --listen 127.0.0.1:0
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch

from fedgsp import ClientData, Task

BUCKETS = 4096


class Texts(Task):
    local_options = ("data",)

    def __init__(self, data: Path, sites: str, classes: int = 2, width: int = 32) -> None:
        self.source, self.sites = data, sites.split(",")
        self.num_clients, self.num_classes, self.width = len(self.sites), classes, width

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.EmbeddingBag(BUCKETS, self.width, padding_idx=0), torch.nn.Linear(self.width, self.num_classes)
        )

    def data(self, client: int) -> ClientData:
        everything = datasets.load_from_disk(str(self.source))
        own = np.flatnonzero(np.array(everything["site"]) == self.sites[client])
        test, train = np.split(np.random.default_rng(client).permutation(own), [len(own) // 4])
        return ClientData(everything.select(train), everything.select(test))

    def collate(self, rows: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        # Words as numbers; shorter texts are filled up with 0, which the model leaves out.
        words = [[1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in row["text"].split()] for row in rows]
        numbers = torch.zeros(len(rows), max(map(len, words), default=1) or 1, dtype=torch.int64)
        for line, found in zip(numbers, words, strict=True):
            line[: len(found)] = torch.tensor(found, dtype=torch.int64)
        return numbers, torch.tensor([row["label"] for row in rows])
