"""Distributed runs equal an independent single-process implementation, bit for bit, however they are laid out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp.transfers import pipes
from fedgsp.transfers.model_calls import upload
from fedgsp_node.connections import attachment
from fedgsp_node.tasks import load_task
from tests.support import cluster
from tests.support.cluster import play
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, State, assert_same_bits

EIGHT = range(8)
#: The first eight of many small clients: 8 to 128 samples.
TASK = {"clients": "24"}
LAYOUTS: dict[str, list[Sequence[int]]] = {
    "one node": [EIGHT],
    "two nodes": [range(4), range(4, 8)],
    "a node per client": [[client] for client in EIGHT],
    "mixed up": [[7, 0, 3], [1, 2], [4, 5, 6]],
}
#: Played with managers that are processes of their own: each layout, and each relay mode. The others have them here.
BY_PROCESSES = {"one node": "auto", "two nodes": "manager", "a node per client": "direct", "mixed up": "auto"}


def reference(**changes: Any) -> Reference:
    task = load_task("digits", TASK)
    return Reference(task, EIGHT, **{"rounds": 2, "beta": 2, "sampling_rate": 1.0, **changes})


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    return cluster.settings(tmp_path / "run", **{"task_option": TASK, "min_clients": 8, **changes})


def nodes(layout: str, peers: bool = True) -> list[NodeSettings]:
    return cluster.nodes(*LAYOUTS[layout], peers=peers, **TASK)


@pytest.fixture(scope="module")
def expected() -> list[State]:
    return reference().play_fedgsp()


#: What else may be combined is played on demand.
OFTEN = {*BY_PROCESSES.items(), ("mixed up", "manager"), ("mixed up", "direct")}


@pytest.mark.parametrize(
    ("layout", "relay"),
    [
        pytest.param(*both, marks=[] if both in OFTEN else [pytest.mark.slow])
        for both in itertools.product(LAYOUTS, ["auto", "direct", "manager"])
    ],
)
async def test_every_layout_and_relay_mode_gives_the_oracles_bits(
    tmp_path: Path, expected: list[State], layout: str, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if relay != BY_PROCESSES[layout]:
        managers_here(monkeypatch)
    run = await play(settings(tmp_path, relay=relay), nodes(layout))
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)
    assert [row["clients_trained"] for row in run.rows] == [8, 8]
    if relay == "manager":
        assert all(row["bytes_direct"] == 0 for row in run.rows)


@pytest.mark.parametrize(
    ("hand_over", "relay"),
    [
        ("auto", "auto"),
        pytest.param("network", "manager", marks=pytest.mark.slow),
        pytest.param("auto", "manager", marks=pytest.mark.slow),
        pytest.param("network", "auto", marks=pytest.mark.slow),
    ],
)
async def test_models_through_memory_have_the_same_bits_as_through_sockets(
    tmp_path: Path, expected: list[State], relay: str, hand_over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[Any] = []
    receivers: set[str] = set()
    made, sent = pipes.offer, upload

    def offer() -> Any:
        offered.append(made())
        return offered[-1]

    async def noted(*arguments: Any) -> None:
        receivers.add(arguments[4])
        await sent(*arguments)

    monkeypatch.setattr(pipes, "LEAST_BYTES", 1)  # here and not in the managers, which so send through sockets
    monkeypatch.setattr(pipes, "offer", offer)
    monkeypatch.setattr(attachment, "upload", noted)
    hosts = [dataclasses.replace(node, hand_over=hand_over) for node in nodes("mixed up")]
    try:
        run = await play(settings(tmp_path, relay=relay, hand_over=hand_over), hosts)
    finally:
        pipes.choose("auto")
    assert_same_bits(run.model(2), expected[1])
    assert bool(offered) == (hand_over == "auto" and bool(pipes.machine()))
    assert receivers == {pipes.machine() if hand_over == "auto" else ""}  # what the managers say of themselves


async def test_nodes_that_cannot_be_dialled_relay_by_way_of_the_manager(
    tmp_path: Path, expected: list[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    run = await play(settings(tmp_path), nodes("mixed up", peers=False))
    assert_same_bits(run.model(2), expected[1])
    assert all(row["bytes_direct"] == 0 and row["bytes_relayed"] > 0 for row in run.rows)


async def test_hand_overs_inside_one_node_move_no_bytes(tmp_path: Path) -> None:
    run = await play(settings(tmp_path, rounds=1, beta=1), nodes("one node"))
    (row,) = run.rows
    model = sum(array.nbytes for array in run.model(1).values())
    # the start model comes down and the result goes up; seven hand-overs in between cost nothing
    assert (row["bytes_direct"], row["bytes_relayed"]) == (0, 2 * model)


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"sampling_rate": 0.5}, {"beta": 1}, {"beta": 8})),
        {"seed": 3, "local_epochs": 2},
    ],
)
async def test_sampling_growth_seed_and_epochs_are_those_of_the_oracle(
    tmp_path: Path, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    expected = reference(**changes).play_fedgsp()
    run = await play(settings(tmp_path, **changes), nodes("two nodes"))
    assert_same_bits(run.model(2), expected[1])


@pytest.mark.parametrize("layout", [pytest.param("one node", marks=pytest.mark.slow), "mixed up"])
async def test_fedavg_equals_the_oracle(tmp_path: Path, layout: str) -> None:
    expected = reference(sampling_rate=0.7).play_fedavg()
    run = await play(settings(tmp_path, scheme="fedavg", sampling_rate=0.7), nodes(layout))
    assert_same_bits(run.model(2), expected[1])


async def test_batch_norm_buffers_are_averaged_and_counters_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    task = "tests.support.batch_norm_task:Task"
    oracle = Reference(load_task(task, {}), range(4), rounds=2, beta=2, sampling_rate=1.0)
    expected = oracle.play_fedgsp()
    hosts = [dataclasses.replace(node, task=task, task_option={}) for node in cluster.nodes([0, 1], [2, 3])]
    run = await play(cluster.settings(tmp_path / "run", task=task, task_option={}), hosts)
    assert_same_bits(run.model(2), expected[1])
