"""Data that change behind a training: views, random samples, memory maps, constants that a model changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp.errors import TaskError
from fedgsp.messages import TrainingSettings
from fedgsp_node import hosted_data
from fedgsp_node.clients import Clients
from fedgsp_node.order_error import OrderError
from fedgsp_node.tasks import load_task
from fedgsp_node.training.control import Control
from tests.support.local_work import mlp

X = np.random.default_rng(0).standard_normal((600, 10)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 600)
HOW = TrainingSettings("sgd", 1, 50, 0.05, seed=3)


class One(Task):
    """Clients with the same data."""

    num_classes, num_clients, head = 4, 2, ()

    def __init__(self, part: Any, make: Any = mlp) -> None:
        self.part, self.make = part, make

    def model(self) -> nn.Module:
        made: nn.Module = self.make()
        return made

    def data(self, client: int) -> ClientData:
        return ClientData(self.part, self.part)


class Pages(np.memmap):
    """Notes how many rows are read at once."""

    most = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Pages.most = max(Pages.most, len(found) if isinstance(found, np.ndarray) and found.ndim == 2 else 0)
        return found


def in_file(path: Path, values: np.ndarray) -> np.ndarray:
    np.save(path, values)
    mapped: np.ndarray = np.load(path, mmap_mode="r")
    return mapped


def test_metrics_read_a_memory_map_batch_by_batch_and_get_all_targets(tmp_path: Path) -> None:
    class Measured(One):
        def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
            assert np.array_equal(targets.numpy(), Y)
            return {"rows": float(len(outputs))}

    Pages.most = 0
    clients = Clients(Measured(Split(in_file(tmp_path / "x.npy", X).view(Pages), Y)), [0])
    assert clients.evaluate(0, clients.initial_weights(0), Control()).metrics == {"rows": 600.0}
    assert 0 < Pages.most <= 256


class Drawn(torch.utils.data.Dataset[Any]):
    """Samples with noise from a global generator."""

    def __init__(self, generator: str) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        draw = {"torch": lambda: torch.rand(1).item(), "numpy": np.random.rand, "python": random.random}
        return X[number] + np.float32(draw[self.generator]()), Y[number]


@pytest.mark.parametrize("generator", ["torch", "numpy", "python"])
def test_random_samples_are_the_same_whatever_the_node_did_before(generator: str) -> None:
    found = []
    for before in (0, 3):
        clients = Clients(One(Drawn(generator)), None)
        start = clients.initial_weights(0)
        for _ in range(before):
            clients.evaluate(1, start, Control())
        found.append(
            (clients.evaluate(0, start, Control(), HOW), clients.train(0, start, HOW, 1, Control()).after.digest)
        )
    assert found[0] == found[1]


class OwnGenerator(Drawn):
    """Samples with noise from a generator that nobody seeds again."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def __getitem__(self, number: int) -> Any:
        return X[number] + np.float32(self.random.normal()), Y[number]


def test_a_node_warns_of_samples_that_depend_on_what_was_read_before(caplog: pytest.LogCaptureFixture) -> None:
    for generator in ("torch", "numpy", "python"):
        Clients(One(Drawn(generator)), None).rehearse()
    assert not caplog.records
    Clients(One(OwnGenerator()), None).rehearse()
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(" differ each time they are read")[0] for text in told] == [
        "samples of a training part",
        "samples of a test part",
    ]


class Dealt(One):
    """Its samples are dealt by global generators, as it is made and for each client."""

    def __init__(self) -> None:
        super().__init__(None)
        self.order = np.random.permutation(len(Y))

    def model(self) -> nn.Module:
        return nn.Sequential(super().model(), nn.Dropout(0.5))

    def data(self, client: int) -> ClientData:
        rows = self.order[torch.randint(len(Y), (60,)).numpy()]
        random.shuffle(kept := rows.tolist())
        return ClientData(*(Split(X[part], Y[part]) for part in (kept[:40], kept[40:])))


class DealtAgain(Dealt):
    data_is_repeatable = True


@pytest.mark.parametrize("name", ["Dealt", "DealtAgain"])
def test_what_is_dealt_at_random_is_the_same_on_every_node_and_each_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_data, "KEPT_BYTES", 1)  # what is repeatable is made again for each use
    found: list[Any] = []
    for hosted in ([1], [0, 1], [1, 0]):
        torch.manual_seed(len(found))
        np.random.seed(len(found))
        random.seed(len(found))
        clients = Clients(load_task(f"{__name__}:{name}", {}), hosted)
        for client in (*hosted, 1):
            trained = clients.train(client, clients.initial_weights(0), HOW, 1, Control())
        found.append((trained.after.digest, clients.evaluate(1, trained.after, Control())))
    assert found[0] == found[1] == found[2]


def test_a_process_that_makes_a_task_goes_on_with_its_own_random_numbers() -> None:
    def draws() -> tuple[float, float, float]:
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    load_task(f"{__name__}:Dealt", {})
    first = draws()
    load_task(f"{__name__}:Dealt", {})
    assert not set(first) & set(draws())


class Viewed(Drawn):
    """Samples that are views of the data, which its task hands on as they are."""

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(X[number : number + 1]), torch.from_numpy(Y[number : number + 1])


def test_a_model_that_changes_its_input_leaves_views_of_the_data_alone() -> None:
    class Alone(One):
        def collate(self, items: Any) -> Any:
            return (
                items[0] if len(items) == 1 else (torch.cat([x for x, _ in items]), torch.cat([y for _, y in items]))
            )

    before = X.copy()
    clients = Clients(Alone(Viewed("torch"), lambda: nn.Sequential(nn.ReLU(inplace=True), mlp())), None)
    clients.train(0, clients.initial_weights(0), TrainingSettings("sgd", 1, 1, 0.05, seed=3), 1, Control())
    assert np.array_equal(X, before)


def test_arrays_computed_from_a_memory_map_are_checked_like_others(tmp_path: Path) -> None:
    values = X.copy()
    values[5, 3] = np.nan
    computed = in_file(tmp_path / "x.npy", values).astype(np.float64)
    assert isinstance(computed, np.memmap)
    with pytest.raises(TaskError, match="client 0's x holds NaN or infinite values"):
        Clients(One(Split(computed, Y)), None)


def test_a_memory_map_of_the_other_byte_order_is_read_as_it_is_meant(tmp_path: Path) -> None:
    digests = set()
    for kind in ("<f4", ">f4", ">f8"):
        clients = Clients(One(Split(in_file(tmp_path / f"{kind[1:]}{kind[0] == '<'}.npy", X.astype(kind)), Y)), None)
        digests.add(clients.train(0, clients.initial_weights(0), HOW, 1, Control()).after.digest)
    assert len(digests) == 1


class Spoils(nn.Module):
    """Changes what does not travel, and then fails, if `spoil` is set."""

    spoil = False

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Linear(10, 10).requires_grad_(False), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Spoils.spoil and self.training:
            with torch.no_grad():
                self.body.weight.add_(1)
            raise RuntimeError("boom")
        found: torch.Tensor = self.top(self.body(x))
        return found


def test_a_failed_training_that_changed_a_constant_harms_no_other_client() -> None:
    clients = Clients(One(Split(X, Y), Spoils), None)
    clients.make_constants(5)
    start = clients.initial_weights(0)
    expected = clients.train(1, start, HOW, 1, Control()).after.digest
    Spoils.spoil = True
    try:
        with pytest.raises(OrderError, match="boom"):
            clients.train(0, start, HOW, 1, Control())
    finally:
        Spoils.spoil = False
    assert clients.train(1, start, HOW, 1, Control()).after.digest == expected


def test_constants_that_are_made_already_are_told_without_the_model() -> None:
    clients = Clients(One(Split(X, Y), Spoils), None)
    assert clients.made_constants(5) is None
    made = clients.make_constants(5)
    assert clients.made_constants(5) == made
    assert clients.made_constants(6) is None
