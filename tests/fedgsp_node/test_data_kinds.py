"""Data as people have them: arrays, tensors, dicts, memory maps, data sets; and the hooks for batches."""

from __future__ import annotations

import dataclasses
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from benchmarks.performance.memory import resident
from fedgsp import ClientData, Split, Task
from fedgsp.errors import TaskError
from fedgsp.messages import TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.local_work import mlp
from tests.support.trainings import ALGORITHMS

X = np.random.default_rng(0).standard_normal((23, 10)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 23)


class Named(nn.Module):
    """Takes its input by parts: a dict, a tuple, or whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Any) -> torch.Tensor:
        if isinstance(x, dict):
            x = torch.cat([x["first"], x["rest"]], dim=1)
        elif isinstance(x, tuple):
            x = torch.cat(x, dim=1)
        found: torch.Tensor = self.inner(x.float())
        return found


class Kinds(Task):
    """One client whose training and test part are the same."""

    num_classes, num_clients, head = 4, 1, ("inner.2.",)

    def __init__(self, part: Any) -> None:
        self.part = part

    def model(self) -> nn.Module:
        return Named()

    def data(self, client: int) -> ClientData:
        return ClientData(self.part, self.part)


class Pairs(Dataset[Any]):
    """A data set of torch with pairs as its items."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> Any:
        return torch.from_numpy(X[number]), int(Y[number])


class Rows:
    """As a data set of Hugging Face with tensors: items are dicts, and numbers are ints of Python."""

    def __init__(self, label: str = "labels") -> None:
        self.label = label

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> Any:
        assert isinstance(number, int)
        return {
            "first": torch.from_numpy(X[number, :3]),
            "rest": torch.from_numpy(X[number, 3:]),
            self.label: int(Y[number]),
        }


def read_only() -> np.ndarray:
    found = X.copy()
    found.flags.writeable = False
    return found


KINDS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: Split(X, Y),
    "tensors": lambda: Split(torch.from_numpy(X), torch.from_numpy(Y)),
    "float64": lambda: Split(X.astype(np.float64), Y.astype(np.int32)),
    "read-only": lambda: Split(read_only(), Y),
    "a dict": lambda: Split({"first": X[:, :3], "rest": torch.from_numpy(X[:, 3:])}, Y),
    "a tuple": lambda: Split((X[:, :3], X[:, 3:]), Y),
    "a data set": Pairs,
    "a data set of dicts": Rows,
    "a data set of dicts with a label": lambda: Rows("label"),
}


def learned(task: Task, algorithm: str = "sgd", client: int = 0, round_number: int = 1) -> bytes:
    clients = Clients(task, None)
    clients.rehearse()
    how = TrainingSettings(algorithm, 2, 5, 0.05, seed=3)
    after = clients.train(client, clients.initial_weights(0), how, round_number, Control()).after
    return after.digest


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fedfusion"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_to_the_bits_of_arrays(kind: str, algorithm: str) -> None:
    assert learned(Kinds(KINDS[kind]()), algorithm) == learned(Kinds(Split(X, Y)), algorithm)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_evaluated_and_counted_like_arrays(kind: str) -> None:
    found = []
    for part in (KINDS[kind](), Split(X, Y)):
        clients = Clients(Kinds(part), None)
        evaluated = clients.evaluate(0, clients.initial_weights(0), Control())
        found.append((evaluated, clients.class_counts(0), clients.training_flop, clients.train_samples(0)))
    assert found[0] == found[1]


def test_numbers_in_bfloat16_stay_so() -> None:
    narrow = torch.from_numpy(X).bfloat16()
    assert learned(Kinds(Split(narrow, Y))) == learned(Kinds(Split(narrow.float(), Y)))


def test_a_memory_map_costs_the_pages_that_are_touched(tmp_path: Path) -> None:
    path, count = tmp_path / "x.npy", 2**21
    with path.open("wb") as file:
        file.truncate(4 * 64 * count)  # 512 MiB of zeros that take no room on the disk

    class Mapped(Kinds):
        def __init__(self) -> None:
            super().__init__(None)

        def data(self, client: int) -> ClientData:
            x = np.memmap(path, np.float32, "r", shape=(count, 64))
            part = Split(x, np.zeros(count, np.int8))
            return ClientData(Split(x[:64], part.y[:64]), part)

        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(64, 4))

        head: Any = ()

    before = resident(os.getpid())
    clients = Clients(Mapped(), None)
    clients.rehearse()
    clients.train(0, clients.initial_weights(0), TrainingSettings("sgd", 1, 5, 0.05, seed=3), 1, Control())
    assert resident(os.getpid()) - before < 2**26


class Texts(Kinds):
    """Sequences of different lengths, which it pads."""

    def __init__(self) -> None:
        super().__init__(self)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> Any:
        return X[number, : 1 + number % 10], int(Y[number])

    def collate(self, items: Sequence[Any]) -> tuple[Any, Any]:
        x = torch.zeros(len(items), 10)
        for row, (values, _) in zip(x, items, strict=True):
            row[: len(values)] = torch.from_numpy(values)
        return x, torch.tensor([label for _, label in items])


def test_a_task_pads_what_differs_in_length() -> None:
    padded = np.where(np.arange(10) < 1 + np.arange(23)[:, None] % 10, X, 0)
    assert learned(Texts()) == learned(Kinds(Split(padded, Y)))


class Noisy(Kinds):
    """Adds noise to what it trains on, in place."""

    num_clients = 2

    def transform(self, x: Any, y: Any, generator: torch.Generator) -> tuple[Any, Any]:
        return x.add_(torch.randn(x.shape, generator=generator)), y


def test_augmentation_draws_by_round_and_client_and_leaves_the_data_alone() -> None:
    before = X.copy()
    task = Noisy(Split(X, Y))
    assert learned(task) == learned(Noisy(Split(X, Y)))
    torch.manual_seed(9)
    assert learned(task) == learned(task)
    assert (
        len({learned(task), learned(task, round_number=2), learned(task, client=1), learned(Kinds(Split(X, Y)))}) == 4
    )
    assert np.array_equal(X, before)
    clients = Clients(task, None)
    evaluated = clients.evaluate(0, clients.initial_weights(0), Control())
    assert evaluated == Clients(Kinds(Split(X, Y)), None).evaluate(0, clients.initial_weights(0), Control())


class Items(Rows):
    def __init__(self, item: Any) -> None:
        super().__init__()
        self.item = item

    def __getitem__(self, number: int) -> Any:
        return self.item


class Endless(IterableDataset[Any]):
    """It has a length, and no samples by number."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (Items({"text": torch.zeros(3)}), "the default collate.. finds no inputs and targets in an item of type dict"),
        (Items((1, 2, 3)), "the default collate.. finds no inputs and targets in an item of type tuple"),
        (Items({"text": object(), "labels": 1}), "collate.. raised TypeError.* or override collate"),
        (Items((torch.zeros(10), np.int32(1))), r"loss.. .* raised .*: expected target dtype.*\(y.long\(\)\)"),
        (Endless(), "client 0's train is a Endless; .* samples by number"),
        (
            Split({"a": np.array(["x"] * 3)}, np.zeros(3, np.int64)),
            "client 0's x has dtype <U1; return arrays of numbers",
        ),
        (Split({"a": np.array([np.nan] * 3)}, np.zeros(3, np.int64)), "client 0's x holds NaN"),
        (Split((X, X * np.inf), Y), "client 0's x holds NaN"),
        (
            Split(torch.from_numpy(X).to_sparse(), Y),
            r"client 0's x is no dense tensor.*; return x.to_dense\(\)",
        ),
        (Split(torch.empty(23, 3, device="meta"), Y), "client 0's x is no dense tensor with values"),
        (Split(X.astype(np.complex64), Y), "client 0's x has dtype complex64; return real and imaginary parts"),
        (Split(X, np.stack([Y, Y + 1], axis=1)), r"client 0 has labels (\d) .. \1 outside of the classes; number the"),
        (pd.DataFrame(X), "client 0's train is a DataFrame"),
        ([(X, Y)], "client 0's train is a list"),
        ({"x": X}, "client 0's train is a dict"),
        (torch.from_numpy(X), "client 0's train is a Tensor"),
        (7, "client 0's train is a int"),
    ],
)
def test_what_is_no_data_is_told_when_the_node_starts(part: Any, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        Clients(Kinds(part), None).rehearse()


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        ({"a": X, "b": X[:4]}, Y, "4 and 23 inputs but 23 labels"),
        ((X, X), Y[:5], "23 inputs but 5 labels"),
        (list(X), Y, "10 inputs but 23 labels: a list holds several inputs of each sample, and np.stack makes one"),
        ({}, Y, "no inputs but 23 labels"),
        (X, None, "there are no labels: without labels, let y be np.zeros"),
        (X, (), "there are no labels: without labels, let y be np.zeros"),
        ([1.0, 2.0], Y, "a float is no array: give arrays or tensors, and no lists of numbers"),
    ],
)
def test_columns_of_other_lengths_are_no_split(x: Any, y: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Split(x, y)


def test_an_error_of_split_names_the_line_of_the_task_that_made_it() -> None:
    class Unequal(Kinds):
        def data(self, client: int) -> ClientData:
            return ClientData(Split(X, Y[1:]), self.part)

    line = Unequal.data.__code__.co_firstlineno + 1
    with pytest.raises(TaskError, match=rf"23 inputs but 22 labels \(test_data_kinds.py:{line}\)"):
        Clients(Unequal(Split(X, Y)), None)


def test_a_line_of_a_notebook_is_named_although_it_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text, name = "def data(self, client):\n    return 1 // 0\n", "<ipython-input-3-6f2a>"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
    found: dict[str, Any] = {}
    exec(compile(text, name, "exec"), found)
    task = type("Cell", (Kinds,), {"data": found["data"]})(None)
    with pytest.raises(TaskError, match=r"ZeroDivisionError: .* \(<ipython-input-3-6f2a>:2\)"):
        Clients(task, None)


def test_of_an_error_in_a_package_the_line_of_the_task_that_called_it_is_named() -> None:
    class Looks(Kinds):
        def data(self, client: int) -> ClientData:
            return ClientData(*pd.DataFrame(X)["age"])

    line = Looks.data.__code__.co_firstlineno + 1
    with pytest.raises(TaskError, match=rf"raised KeyError: 'age' \(test_data_kinds.py:{line}\)"):
        Clients(Looks(None), None)


@pytest.mark.parametrize(
    ("x", "y", "remedy"),
    [
        (np.ones((4, 6), np.uint8), np.zeros(4, np.int64), "for example x.float()"),
        (np.ones((4, 6), np.float32), np.full((4, 1, 1), 7), "ignore_index"),
    ],
)
def test_an_error_of_torch_that_is_met_often_is_told_with_what_to_do(x: Any, y: Any, remedy: str) -> None:
    class Often(Kinds):
        head = ("",)

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, targets.flatten())

        def model(self) -> nn.Module:
            return nn.Linear(6, 3)

    with pytest.raises(TaskError, match=r"raised (RuntimeError|IndexError)") as caught:
        Clients(Often(Split(x, y)), None).rehearse()
    assert remedy in caught.value.remedy


def test_a_package_that_the_data_need_is_to_be_installed() -> None:
    class Needs(Kinds):
        def data(self, client: int) -> ClientData:
            raise ImportError("pyarrow is required for parquet support")

    with pytest.raises(TaskError, match="raised ImportError: pyarrow is required") as caught:
        Clients(Needs(None), None)
    assert caught.value.remedy == f"install the package that this names for {sys.executable}, or fix the task module"


def test_targets_may_be_several() -> None:
    class Two(Kinds):
        def loss(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, targets["a"]) + outputs.mul(targets["b"]).mean()

        def correct(self, outputs: torch.Tensor, targets: Any) -> int:
            return int((outputs.argmax(dim=1) == targets["a"]).sum())

    task = Two(Split(X, {"a": Y, "b": X[:, :4]}))
    clients = Clients(task, None)
    assert clients.evaluate(0, clients.initial_weights(0), Control()).samples == 23
    assert learned(task, "per-fedavg") != learned(task)
    with pytest.raises(OrderError, match=r"y is a dict, not an array of classes"):
        clients.class_counts(0)


def test_a_data_set_that_raises_skips_the_client_with_the_reason() -> None:
    class Breaks(Rows):
        broken = False

        def __getitem__(self, number: int) -> Any:
            if self.broken and number == 9:
                raise OSError("no such image")
            return super().__getitem__(number)

    part = Breaks()
    clients = Clients(Kinds(part), None)
    part.broken = True
    with pytest.raises(OrderError, match="OSError: no such image"):
        clients.train(0, clients.initial_weights(0), TrainingSettings("sgd", 1, 5, 0.1, seed=0), 1, Control())
    assert dataclasses.is_dataclass(clients.hosted[0])


def test_a_data_set_of_hugging_face_is_taken() -> None:
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_dict({"first": X[:, :3].tolist(), "rest": X[:, 3:].tolist(), "label": Y.tolist()})
    assert learned(Kinds(part.with_format("torch"))) == learned(Kinds(Split(X, Y)))
