"""An example of a data set of Hugging Face: texts with labels, which a column divides among clients.

`--task-option data=FOLDER` names what `Dataset.save_to_disk` wrote, with columns text, label and site. In this
directory, name it with `--task hugging_face:Texts`, and give `--task-option sites=NAME,NAME`. Needs `datasets`.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
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
        own = everything.filter(lambda row: row["site"] == self.sites[client])
        parts = own.train_test_split(0.25, seed=client)
        return ClientData(parts["train"], parts["test"])

    def collate(self, rows: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        # Words as numbers; shorter texts are filled up with 0, which the model leaves out.
        words = [[1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in row["text"].split()] for row in rows]
        numbers = torch.zeros(len(rows), max(map(len, words), default=1) or 1, dtype=torch.int64)
        for line, found in zip(numbers, words, strict=True):
            line[: len(found)] = torch.tensor(found, dtype=torch.int64)
        return numbers, torch.tensor([row["label"] for row in rows])
