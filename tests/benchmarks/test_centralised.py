"""The centralised runs beside which the examples are measured, and the validation data that choose their settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks.centralised import changed
from fedgsp import ClientData, Split, Task
from fedgsp.errors import TaskError
from fedgsp.seeds import derive
from tests.support import cluster
from tests.support.cluster import play
from tests.support.managers_here import managers_here

DIGITS = {"of": "digits", "clients": "4"}
HERE = f"{__name__}:"


class Numbers(torch.utils.data.Dataset[Any]):
    def __init__(self, values: range) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([self.values[number]]), 0


class Datasets(Task):
    """Clients whose parts are data sets: 10 c to 10 c + 9 for training, 100 + c for testing."""

    num_classes, num_clients = 2, 3

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 2)

    def data(self, client: int) -> ClientData:
        return ClientData(Numbers(range(10 * client, 10 * client + 10)), Numbers(range(100 + client, 101 + client)))


class Dicts(Datasets):
    """The same numbers in arrays, with a mask beside them."""

    def data(self, client: int) -> ClientData:
        parts = [np.array([[x] for x in part.values]) for part in parts_of(super().data(client))]
        return ClientData(*(Split({"x": x, "pair": (x, torch.ones(len(x)))}, np.zeros(len(x), int)) for x in parts))


def parts_of(data: ClientData) -> tuple[Numbers, Numbers]:
    return data.train, data.test


def values(part: Any) -> list[int]:
    if isinstance(part, Split):
        assert_array_equal(part.x["x"], part.x["pair"][0])
        assert len(part.x["pair"][1]) == len(part)
        return part.x["x"].ravel().tolist()
    return [int(part[number][0]) for number in range(len(part))]


@pytest.mark.parametrize("kind", ["Datasets", "Dicts"])
def test_one_client_has_the_samples_of_all(kind: str) -> None:
    task = changed(f"{HERE}{kind}", pooled=True)
    assert task.num_clients == 1
    found = task.data(0)
    assert values(found.train) == list(range(30))
    assert values(found.test) == [100, 101, 102]


@pytest.mark.parametrize("kind", ["Datasets", "Dicts"])
@pytest.mark.parametrize("pooled", [False, True])
def test_validation_data_come_from_the_training_part_alone(kind: str, pooled: bool) -> None:
    task = changed(f"{HERE}{kind}", pooled=pooled, validation=True)
    found = [task.data(client) for client in range(task.num_clients)]
    train, validation = ([x for data in found for x in values(getattr(data, part))] for part in ("train", "test"))
    assert len(validation) == 6
    assert sorted(train + validation) == list(range(30))


def test_a_centralised_run_has_the_validation_data_of_the_federated_one() -> None:
    pooled, federated = (changed(f"{HERE}Datasets", pooled=one, validation=True, seed=3) for one in (True, False))
    assert values(pooled.data(0).test) == [x for client in range(3) for x in values(federated.data(client).test)]


def test_the_seed_draws_other_validation_data() -> None:
    tasks = [changed(f"{HERE}Datasets", validation=True, seed=seed) for seed in range(5)]
    assert len({tuple(values(task.data(0).test)) for task in tasks}) > 1


def test_options_go_to_the_task_which_refuses_what_it_does_not_know() -> None:
    assert changed("digits", clients="5").num_clients == 5
    assert changed("digits", seeded=True, seed=1, clients="5").num_clients == 5
    with pytest.raises(TaskError, match="no option 'colour'"):
        changed("digits", colour="red")


async def test_a_centralised_run_is_a_loop_of_plain_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples are one batch, so that the order of samples, which the loop does not know, changes only rounding."""
    managers_here(monkeypatch)
    options = {**DIGITS, "pooled": "true"}
    config = cluster.settings(
        tmp_path / "run",
        task="benchmarks.centralised:changed",
        task_option=options,
        scheme="fedavg",
        min_clients=1,
        rounds=4,
        batch_size=10_000,
        learning_rate=0.01,
        optimizer="sgd",
        optimizer_option={"momentum": "0.9"},
        optimizer_state="relayed",
    )
    (node,) = cluster.nodes([0])
    run = await play(config, [dataclasses.replace(node, task=config.task, task_option=options)])

    task = changed("digits", clients="4")
    parts = [task.data(client).train for client in range(4)]
    x, y = (torch.from_numpy(np.concatenate([getattr(part, name) for part in parts])) for name in ("x", "y"))
    torch.manual_seed(derive(config.seed, "initial-weights"))
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        assert_allclose(run.model(4)[name], tensor, rtol=0, atol=1e-5)
