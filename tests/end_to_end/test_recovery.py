"""Whoever dies or lies in the middle of a round, the others go on to the oracle's bits."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Order, Train
from fedgsp.seeds import stream
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.kept.learned import Learned
from fedgsp_node.tasks import load_task
from fedgsp_node.worker import Worker
from group_manager import server as manager_server
from tests.support import cluster
from tests.support.cluster import play
from tests.support.coming_and_going import away_between, gone_at
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, assert_same_bits
from top_server import rounds
from top_server.grouping.round_size import sample
from top_server.nodes import waiting
from top_server.record.journal import Line

TRAIN = Clients.train
TakesPart = Callable[[int, int, int], bool]
#: The first eight of many small clients.
TASK = {"clients": "24"}


def oracle(rounds: int, takes_part: TakesPart = lambda *_: True, beta: int = 2) -> Reference:
    task = load_task("digits", TASK)
    return Reference(task, range(8), rounds=rounds, beta=beta, sampling_rate=1.0, takes_part=takes_part)


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    return cluster.settings(tmp_path / "run", **{"task_option": TASK, **changes})


def nodes(*clients: Sequence[int]) -> list[NodeSettings]:
    return cluster.nodes(*clients, clients=TASK["clients"])


@pytest.mark.parametrize(
    ("scheme", "moment"),
    [("fedgsp", "hop_finished"), pytest.param("fedavg", "group_finished", marks=pytest.mark.slow)],
)
async def test_a_manager_that_is_killed_costs_nobody_the_round(tmp_path: Path, scheme: str, moment: str) -> None:
    managers: list[int] = []
    killed: list[int] = []

    def watch(event: Line) -> None:
        if event["event"] == "manager_spawned":
            managers.append(event["pid"])
        if event["event"] == moment and event["round"] == 2 and not killed:
            killed.append(managers[0])
            os.kill(managers[0], SIGKILL)

    config = settings(tmp_path, scheme=scheme, rounds=3, sampling_rate=1.0)
    run = await play(config, nodes([0, 2, 4, 6], [1, 3, 5, 7]), on_event=watch)
    reference = oracle(3)
    assert_same_bits(run.model(3), (reference.play_fedgsp() if scheme == "fedgsp" else reference.play_fedavg())[2])
    assert [row["clients_trained"] for row in run.rows] == ([8, 8, 6] if scheme == "fedgsp" else [8, 8, 8])
    assert run.of_kind("manager_lost")


@pytest.mark.parametrize("clients", [[range(8)], pytest.param([[0, 2, 4, 6], [1, 3, 5, 7]], marks=pytest.mark.slow)])
async def test_what_a_manager_had_not_handed_over_when_it_was_killed_is_revealed_again(
    tmp_path: Path, clients: list[Sequence[int]]
) -> None:
    """Whoever's update were lost would be alone in the last round."""
    managers: list[int] = []
    killed: list[int] = []

    def watch(event: Line) -> None:
        if event["event"] == "manager_spawned":
            managers.append(event["pid"])
        if event["event"] == "hop_finished" and (event["round"], event["position"]) == (2, 4) and not killed:
            killed.append(managers[-1])
            os.kill(managers[-1], SIGKILL)

    changes = {"scheme": "hcct", "program": "relay", "grouping_option": {"groups": "1"}, "rounds": 3}
    run = await play(settings(tmp_path, **changes), nodes(*clients), on_event=watch)
    assert run.of_kind("manager_lost")
    assert [row["partition"] for row in run.rows][1:] == [[[*range(8)]]] * 2
    assert [row["clients_trained"] for row in run.rows] == [8, 8, 8]


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """What the node of client 7 hands on is not what it trained."""

    def train(self: Clients, client: int, *arguments: Any) -> Learned:
        learned = TRAIN(self, client, *arguments)
        if client != 7:
            return learned
        changed = {name: change(array) for name, array in learned.after.arrays.items()}
        return dataclasses.replace(learned, after=Weights.of(changed, learned.after.tensors))

    monkeypatch.setattr(Clients, "train", train)


@pytest.mark.parametrize(
    ("scheme", "relay"),
    [
        ("fedgsp", "auto"),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in [("fedgsp", "manager"), ("fedavg", "auto")]),
    ],
)
async def test_a_client_that_hands_on_bad_models_is_named_and_at_last_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, relay: str
) -> None:
    """Node n2 hosts client 7 alone, and hands on NaN."""
    managers_here(monkeypatch)
    spoil(monkeypatch, lambda array: np.full_like(array, np.nan))
    config = settings(tmp_path, scheme=scheme, rounds=4, sampling_rate=1.0, relay=relay)
    if scheme == "fedgsp":
        config = dataclasses.replace(config, growth="constant", beta=1)
    run = await play(config, nodes([0, 2, 4], [1, 3, 5, 6], [7]))
    skipped = run.of_kind("client_skipped")
    assert {event["client"] for event in skipped} == {7}
    assert [event["round"] for event in skipped] == [1, 2, 3]
    assert [event["client"] for event in run.of_kind("client_left_out")] == [7]
    assert [row["clients_trained"] for row in run.rows] == [7, 7, 7, 7]


async def test_an_update_that_is_far_too_long_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    spoil(monkeypatch, lambda array: array * 100)
    config = settings(tmp_path, scheme="fedavg", sampling_rate=1.0, update_norm_limit=10.0)
    run = await play(config, nodes([0, 2, 4], [1, 3, 5, 6], [7]))
    expected = oracle(2, lambda _round, _group, client: client != 7).play_fedavg()
    assert_same_bits(run.model(2), expected[1])
    skipped = run.of_kind("client_skipped")
    assert {(event["client"], event["code"]) for event in skipped} == {(7, "LONG_UPDATE")}


async def test_a_round_whose_nodes_are_all_lost_is_tried_again_when_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    monkeypatch.setattr(manager_server, "ATTACH_TIMEOUT_S", 1.0)  # a lost node may be asked before the loss is noticed
    hit, gone = asyncio.Event(), asyncio.Event()
    left: set[str] = set()

    def watch(event: Line) -> None:
        if event["event"] == "hop_finished" and event["round"] == 2:
            hit.set()
        if event["event"] == "node_left":
            left.add(event["node"])
        if event["event"] == "round_failed":
            gone.set()

    both: list[Any] = [(node, away_between(hit, gone)) for node in nodes([0, 2, 4, 6], [1, 3, 5, 7])]
    config = settings(tmp_path, beta=1, rounds=3, min_nodes=2)
    run = await play(config, [], both, watch)
    assert left >= {"n0", "n1"}
    assert [event["round"] for event in run.of_kind("round_failed")] == [2]
    assert_same_bits(run.model(3), oracle(3, beta=1).play_fedgsp()[2])


def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for clients that do not come back."""
    managers_here(monkeypatch)
    monkeypatch.setattr(manager_server, "ATTACH_TIMEOUT_S", 1.0)
    monkeypatch.setattr(rounds, "RETURN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(waiting, "RETURN_TIMEOUT_S", 0.1)


def before_training(monkeypatch: pytest.MonkeyPatch, wait: Callable[[int, int], Awaitable[None]]) -> None:
    """A node waits for this before it trains a client in a round."""
    carry_out = Worker.carry_out

    async def waits(self: Worker, order: Order, *arguments: Any) -> Any:
        if isinstance(order.work, Train) and order.key is not None:
            await wait(order.key.round, order.client)
        return await carry_out(self, order, *arguments)

    monkeypatch.setattr(Worker, "carry_out", waits)


async def test_a_run_goes_on_without_the_only_client_that_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon_given_up(monkeypatch)
    config = settings(tmp_path, scheme="fedavg", rounds=4, sampling_rate=1 / 8, min_nodes=2)
    (drawn,) = sample(range(8), 1 / 8, stream(config.seed, "sampling", 2))
    hit = asyncio.Event()

    async def wait(number: int, client: int) -> None:
        if (number, client) == (2, drawn):
            hit.set()
            await asyncio.Event().wait()

    before_training(monkeypatch, wait)
    stays, goes = nodes([client for client in range(8) if client != drawn], [drawn])
    run = await play(config, [stays], [(goes, gone_at(hit))])
    assert [event["round"] for event in run.of_kind("round_failed")] == [2]
    assert [event["round"] for event in run.of_kind("trained_nobody")] == [2]
    assert [row["clients_trained"] for row in run.rows] == [1, 0, 1, 1]
    assert_same_bits(run.model(2), run.model(1))


async def test_a_run_goes_on_with_clients_that_come_back_as_those_of_the_round_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon_given_up(monkeypatch)
    begun, alone, hit, over = (asyncio.Event() for _ in range(4))

    async def wait(number: int, _client: int) -> None:
        if number == 1:
            begun.set()
            await alone.wait()
        if number == 2:
            hit.set()
            await asyncio.Event().wait()

    def watch(event: Line) -> None:
        if event["event"] == "node_left":
            {"n0": over, "n1": alone}[event["node"]].set()

    before_training(monkeypatch, wait)
    first, other = nodes(range(3), range(3, 8))
    config = settings(tmp_path, scheme="global", rounds=3, min_nodes=2)
    run = await play(config, [], [(first, gone_at(hit)), (other, away_between(begun, over))], watch)
    assert [event["round"] for event in run.of_kind("round_failed")] == [2]
    assert [event["round"] for event in run.of_kind("trained_nobody")] == [2]
    assert [row["clients_trained"] for row in run.rows] == [3, 0, 5]


async def test_a_client_that_cannot_train_does_not_end_the_run_while_the_others_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    monkeypatch.setattr(manager_server, "ATTACH_TIMEOUT_S", 1.0)
    hit, failed = asyncio.Event(), asyncio.Event()

    async def wait(number: int, client: int) -> None:
        if number == 2 and client != 7 and not failed.is_set():
            hit.set()
            await asyncio.Event().wait()

    def watch(event: Line) -> None:
        if event["event"] == "round_failed":
            failed.set()

    before_training(monkeypatch, wait)
    faulty: dict[str, Any] = {"task": "tests.support.faulty_task:FaultyDigits", "task_option": {**TASK, "raises": "7"}}
    good, bad = (dataclasses.replace(node, **faulty) for node in nodes(range(4), [7]))
    config = settings(tmp_path, scheme="global", min_nodes=2, **faulty)
    run = await play(config, [bad], [(good, away_between(hit, failed))], watch)
    assert [event["round"] for event in run.of_kind("round_failed")] == [2]
    assert [row["clients_trained"] for row in run.rows] == [4, 4]
