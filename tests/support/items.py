"""A data set of torch from a list."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class Items(Dataset[Any]):
    """A data set of torch."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]
