"""Batches may be packed sequences, in the order of their lengths or with an order of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from fedgsp.errors import TaskError
from fedgsp.messages import TrainingSettings
from fedgsp.task import ClientData, Task
from fedgsp_node.clients import Clients
from fedgsp_node.model.nested import leaves, mapped
from fedgsp_node.training.control import Control
from tests.support.items import Items

BATCH, RATE = 5, 0.1


class Words(Task):
    """Sequences of different lengths, and a class of each."""

    num_classes, num_clients = 2, 1

    def __init__(self, in_order: bool, returns: str = "classes") -> None:
        self.in_order, self.returns = in_order, returns

    def model(self) -> nn.Module:
        return Reader(self.returns)

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        items = [(torch.tensor(rng.normal(size=(2 + n % 4, 3)), dtype=torch.float32), n % 2) for n in range(300)]
        return ClientData(Items(items[:12]), Items(items))

    def collate(self, items: Sequence[Any]) -> tuple[Any, Any]:
        if self.in_order:
            items = sorted(items, key=lambda item: -len(item[0]))
        packed = pack_sequence([x for x, _ in items], enforce_sorted=self.in_order)
        return packed, torch.tensor([y for _, y in items])

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        if self.returns == "classes":
            return super().loss(outputs, targets)
        states = outputs.data if self.returns == "packed" else torch.cat(outputs)
        return states.square().mean()

    def metrics(self, outputs: Any, targets: torch.Tensor) -> dict[str, float]:
        return {"seen": float(len(outputs))}


class Reader(nn.Module):
    def __init__(self, returns: str) -> None:
        super().__init__()
        self.cell, self.last, self.returns = nn.GRU(3, 4), nn.Linear(4, 2), returns

    def forward(self, x: PackedSequence) -> Any:
        states, last = self.cell(x)
        if self.returns == "classes":
            return self.last(last[-1])
        return states if self.returns == "packed" else unpack_sequence(states)


@pytest.mark.parametrize("in_order", [True, False])
def test_they_train_and_are_evaluated(in_order: bool) -> None:
    clients = Clients(Words(in_order), None)
    clients.rehearse()
    start = clients.initial_weights(3)
    trained = clients.train(0, start, TrainingSettings("sgd", 1, BATCH, RATE, seed=11), 1, Control()).after
    assert all((trained.arrays[name] != start.arrays[name]).any() for name in start.arrays)
    found = clients.evaluate(0, trained, Control())
    assert (found.judged, found.metrics) == (300, {"seen": 300.0})


@pytest.mark.parametrize("in_order", [True, False])
def test_a_change_reaches_all_but_the_sizes_which_stay_on_the_cpu(in_order: bool) -> None:
    words = Words(in_order)
    packed, _ = words.collate([words.data(0).train[number] for number in range(4)])
    moved = mapped(lambda part: part.to("meta"), packed)
    assert isinstance(moved, PackedSequence)
    assert moved.data.is_meta
    assert moved.batch_sizes.device.type == "cpu"
    assert (moved.sorted_indices is None) == in_order
    assert len(list(leaves(moved))) == (2 if in_order else 4)


def test_states_are_joined_from_lists_and_not_from_packed_ones() -> None:
    clients = Clients(Words(True, "list"), None)
    clients.rehearse()
    assert clients.evaluate(0, clients.initial_weights(3), Control()).metrics == {"seen": 300.0}
    with pytest.raises(TaskError, match="a PackedSequence of several batches cannot be joined") as caught:
        Clients(Words(True, "packed"), None).rehearse()
    assert "unpack_sequence" in caught.value.remedy
