"""Only what trains travels: frozen parameters and constants are made on every node, compared, and never sent."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedgsp.errors import PeerError, TaskError
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node import server as node_server
from fedgsp_node.cli import app
from fedgsp_node.tasks.digits import Digits
from tests.support import cluster
from tests.support.cluster import play
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, State, assert_same_bits
from tests.support.reference_groups import GroupReference
from top_server.record.model_files import load

EIGHT = range(8)
TASK = {"clients": "24"}
HOSTS = ([7, 0, 3], [1, 2], [4, 5, 6])


class Features(nn.Module):
    """Random features that stay as they are, a normalisation with fixed statistics, and a head that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 400)
        self.norm = nn.BatchNorm1d(400)
        self.head = nn.Linear(400, 10)
        self.body.requires_grad_(False)
        self.norm.running_mean = torch.randn(400) / 10

    def train(self, mode: bool = True) -> Features:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.body(x.flatten(1)))))


class FrozenDigits(Digits):
    """`shift` stands for another version of the file with the features: nodes may give it without being refused."""

    constant = ("norm.running_", "norm.num_batches_tracked")
    local_options = ("shift",)

    def __init__(self, clients: int, shift: float = 0.0) -> None:
        super().__init__(clients)
        self._shift = shift

    def model(self) -> nn.Module:
        module = Features()
        with torch.no_grad():
            module.body.bias[3] += self._shift
        return module


class Restless(FrozenDigits):
    """Its normalisation follows the data."""

    def model(self) -> nn.Module:
        module = Features()
        module.train = lambda mode=True: nn.Module.train(module, mode)  # type: ignore[method-assign]
        return module


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


NAME = f"{__name__}:FrozenDigits"


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    given = {"task": NAME, "task_option": TASK, "min_clients": 8, **changes}
    return cluster.settings(tmp_path / "run", **given)


def nodes(task: str = NAME) -> list[NodeSettings]:
    return [dataclasses.replace(node, task=task) for node in cluster.nodes(*HOSTS, clients="24")]


def reference(kind: type[Reference] = Reference, **changes: Any) -> Any:
    return kind(FrozenDigits(24), EIGHT, rounds=2, **changes)


TRAVELLING = {"norm.weight", "norm.bias", "head.weight", "head.bias"}


def travelling(state: State) -> State:
    return {name: array for name, array in state.items() if name in TRAVELLING}


async def test_a_relay_sends_only_what_trains_and_has_the_oracles_bits(tmp_path: Path) -> None:
    expected = reference(beta=2, sampling_rate=1.0).play_fedgsp()
    run = await play(settings(tmp_path), nodes())
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), travelling(state))
    size = sum(array.nbytes for array in travelling(expected[0]).values())
    assert size < 4 * 64 * 400 / 4
    moved = sum(row["bytes_direct"] + row["bytes_relayed"] for row in run.rows)
    assert moved <= 2 * 2 * 12 * size  # two rounds of two groups: hops, starts and results
    assert run.rows[-1]["accuracy"] > 0.2
    # The whole model is made again from the record, and has the scores of the run.
    assert set(run.of_kind("run_started")[0]["constants"]) == {
        *("body.weight", "body.bias"),
        *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
    }
    words = ["evaluate", str(run.directory.path), "--task", NAME, "--clients", "0-7", "--json"]
    found = json.loads(CliRunner().invoke(app, words).stdout)["together"]
    assert found["accuracy"] == pytest.approx(run.rows[-1]["accuracy"])
    assert found["loss"] == pytest.approx(run.rows[-1]["loss"], rel=1e-5)


async def test_groups_with_models_of_their_own_share_the_constants(tmp_path: Path) -> None:
    # IFCA's clusters begin with different weights, and with the same constants.
    expected = reference(GroupReference).play_independent()[-1]
    run = await play(settings(tmp_path, scheme="independent"), nodes())
    found = [row["accuracy_per_client"] for row in run.rows][-1]
    assert found == pytest.approx({str(client): value for client, value in expected.accuracy.items()})
    run = await play(settings(tmp_path / "ifca", scheme="ifca", profile_option={"models": "2"}), nodes())
    assert {name for path in run.directory.models.glob("final*") for name in load(path)[0]} == TRAVELLING


async def test_a_node_with_other_values_is_refused_and_both_nodes_are_named(tmp_path: Path) -> None:
    refused: list[str] = []
    joined, heard = asyncio.Event(), asyncio.Event()

    async def late(given: NodeSettings) -> None:
        await joined.wait()
        with pytest.raises(PeerError) as caught:
            await node_server.run(given)
        refused.append(str(caught.value))
        heard.set()

    async def waits(given: NodeSettings) -> None:  # the run begins with it, when the other was refused
        await heard.wait()
        await node_server.run(given)

    def watch(event: Any) -> None:
        if event["event"] == "node_joined":
            joined.set()

    first, *_, last = nodes()
    strange = dataclasses.replace(last, task_option={"clients": "24", "shift": "1e-4"}, clients="9", name="strange")
    others = [(strange, late), (dataclasses.replace(last, clients="1,2"), waits)]
    run = await play(settings(tmp_path, min_nodes=2, min_clients=5, rounds=1), [first], others, watch)
    assert "its tensor 'body.bias', which does not travel, has other values than that of the run" in refused[0]
    assert "give all nodes the same pretrained weights" in refused[0]
    (event,) = run.of_kind("node_refused")
    assert event["node"] == "strange"
    assert "(than that of node 'n0')" in event["reason"]


async def test_a_node_whose_training_changes_a_constant_does_not_start_and_says_what_to_do() -> None:
    settings = nodes(f"{__name__}:Restless")[0]
    with pytest.raises(TaskError, match=r"changed its tensor 'norm\..*put that layer into evaluation mode"):
        await node_server.run(dataclasses.replace(settings, top_server="127.0.0.1:1"))  # which it does not reach
