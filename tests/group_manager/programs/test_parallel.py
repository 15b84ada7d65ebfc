"""Parallel: everybody from the same start, the mean in the order of the members."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import (
    Cancel,
    Failure,
    FailureCode,
    GroupResult,
    ModelRef,
    Part,
    RelayMode,
    SourceKind,
    Train,
)
from group_manager.programs.window import AHEAD_PER_NODE
from tests.support.faults import Faults
from tests.support.scene import START, hosted, scene, step
from tests.support.scripted import model, value_of

pytestmark = pytest.mark.usefixtures("_both_ways")

TWO_NODES = hosted(n1=[0, 2, 4], n2=[1, 3, 5])
SAMPLES = {0: 7, 1: 13, 2: 3, 3: 29, 4: 1, 5: 11, 6: 5, 7: 2}


def mean(clients: Sequence[int]) -> float:
    """The mean weighted by samples, folded one by one in float64."""
    total = np.float64(0)
    for client in clients:
        total = total + np.float64(SAMPLES[client]) * np.float64(step(client, START))
    return float(total / sum(SAMPLES[client] for client in clients))


async def test_the_result_is_the_mean_weighted_by_samples() -> None:
    async with scene(samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel")
        assert await play.result(outcome) == mean(range(6))
        assert isinstance(outcome, GroupResult)
        assert outcome.samples == sum(SAMPLES[client] for client in range(6))
        assert play.done == list(range(6))


@pytest.mark.parametrize("late", [0, 1, 2, 3, 4])
async def test_models_are_folded_in_member_order_whoever_is_first(late: int) -> None:
    async with scene(Faults().hold(late, until=5), samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel")
        assert play.trained[-1] == late
        assert play.done == list(range(6))
        assert await play.result(outcome) == mean(range(6))


async def test_the_toy_problem_gives_the_published_value() -> None:
    targets = (0.0, 4.0)

    def two_steps(client: int, w: float) -> float:
        for _ in range(2):
            w -= 0.1 * (w - targets[client])
        return w

    async with scene(rule=two_steps, samples={0: 1, 1: 3}) as play:
        outcome = await play.run(hosted(n1=[0], n2=[1]), "parallel")
        assert await play.result(outcome) == pytest.approx(1.38, abs=1e-12)


async def test_all_start_from_the_top_servers_model_and_a_node_keeps_it() -> None:
    async with scene() as play:
        await play.run(TWO_NODES, "parallel")
        for start in play.starts().values():
            assert start.model_id == "start"
            assert start.keep
            assert [source.kind for source in start.sources] == [SourceKind.TOP_SERVER]


async def test_in_manager_mode_the_start_comes_by_way_of_the_manager_and_is_forgotten() -> None:
    async with scene(samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel", relay=RelayMode.MANAGER)
        assert {source.kind for start in play.starts().values() for source in start.sources} == {SourceKind.MANAGER}
        assert await play.result(outcome) == mean(range(6))  # and nothing else is kept


@pytest.mark.parametrize("nodes", [1, 2])
async def test_few_members_are_at_work_at_a_time(nodes: int) -> None:
    many = hosted(**{f"n{i}": range(i, 40, nodes) for i in range(nodes)})
    async with scene(Faults().hold(0, until=1)) as play:
        await play.run(many, "parallel")
        assert play.most_open == AHEAD_PER_NODE * nodes
        assert (
            max(node.most_held for node in play.nodes.values()) <= AHEAD_PER_NODE * nodes + 2
        )  # the start, and one that is being folded
        assert play.done == list(range(40))


@pytest.mark.parametrize("client", [0, 3, 5])
async def test_a_failing_client_is_left_out(client: int) -> None:
    async with scene(Faults().fail(client), samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel")
        assert await play.result(outcome) == mean([c for c in range(6) if c != client])
        assert play.skipped == {client: Failure(FailureCode.TASK_RAISED, f"client {client} was told to fail")}


async def test_a_stalled_client_is_left_out_and_called_off_at_once() -> None:
    async with scene(Faults().stall(2), samples=SAMPLES) as play:
        outcome = await play.run(hosted(n1=range(8)), "parallel")
        assert await play.result(outcome) == mean([0, 1, 3, 4, 5, 6, 7])
        assert play.skipped[2] is not None
        assert play.skipped[2].code is FailureCode.STALLED
        orders = [
            (type(o.work), o.key.position) for o in play.nodes["n1"].orders if o.key and o.key.task == "parallel"
        ]
        assert orders.index((Cancel, 2)) < orders.index((Train, 6))


async def test_a_lost_nodes_clients_are_left_out() -> None:
    async with scene(Faults().lose_node("n2", before=1), samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel")
        assert await play.result(outcome) == mean([0, 2, 4])
        assert set(play.skipped) == {1, 3, 5}


@pytest.mark.parametrize("back", [False, True])
async def test_a_node_lost_while_its_result_is_collected_is_left_out(back: bool) -> None:
    faults = Faults().restart_node_when_collected("n2") if back else Faults().lose_node_when_collected("n2")
    async with scene(faults, samples=SAMPLES) as play:
        outcome = await play.run(hosted(n1=[0, 1], n2=[2]), "parallel")
        assert await play.result(outcome) == mean([0, 1])
        assert play.skipped[2] is not None
        assert play.skipped[2].code is FailureCode.NODE_LOST


async def test_a_result_that_never_comes_up_is_left_out() -> None:
    async with scene(Faults().never_send_up("n2"), samples=SAMPLES) as play:
        outcome = await play.run(hosted(n1=[0, 1], n2=[2]), "parallel")
        assert await play.result(outcome) == mean([0, 1])
        assert play.skipped[2] is not None
        assert play.skipped[2].code is FailureCode.STALLED


async def test_if_every_client_fails_the_group_fails_and_says_why() -> None:
    async with scene(Faults().fail(0).fail(1)) as play:
        outcome = await play.run(TWO_NODES[:2], "parallel")
        assert outcome == Failure(
            FailureCode.TASK_RAISED, "no member trained; the last reason: client 1 was told to fail"
        )
        play.assert_released()


async def test_a_group_without_members_fails() -> None:
    async with scene() as play:
        assert isinstance(await play.run([], "parallel"), Failure)


async def test_a_report_that_comes_again_changes_nothing() -> None:
    async with scene(Faults().report_twice(1), samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel")
        assert await play.result(outcome) == mean(range(6))


async def test_a_program_that_is_called_off_half_way_leaves_nothing_behind() -> None:
    async with scene(Faults().hold_for_good(3)) as play:
        running = asyncio.create_task(play.run(TWO_NODES, "parallel"))
        await play.told[2].wait()
        await play.holding.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        play.assert_released()
        assert (3, 0) in play.nodes["n2"].cancelled()


async def test_members_count_by_their_weights_and_those_without_one_not_at_all() -> None:
    members = [
        dataclasses.replace(member, weight=weight)
        for member, weight in zip(TWO_NODES[:3], (0.5, 1e-9, 2.5), strict=True)
    ]
    async with scene(samples=SAMPLES) as play:
        outcome = await play.run(members, "parallel")
        total = 0.5 * step(0, START) + 1e-9 * step(1, START) + 2.5 * step(2, START)
        assert await play.result(outcome) == total / (0.5 + 1e-9 + 2.5)


async def test_a_member_without_weight_trains_and_reports_but_its_model_stays_where_it_is() -> None:
    async with scene(samples=SAMPLES) as play:
        await play.attach(TWO_NODES[:3])
        request = play.request(TWO_NODES[:3], "parallel")
        weightless = [dataclasses.replace(request.members[1], weight=0.0)]
        members = (request.members[0], *weightless, request.members[2])
        outcome = await play.run_request(dataclasses.replace(request, members=members))
        assert await play.result(outcome) == mean([0, 2])
        assert play.done == [0, 1, 2]
        assert isinstance(outcome, GroupResult)
        assert outcome.samples == SAMPLES[0] + SAMPLES[2]


async def test_if_all_members_with_a_weight_fail_the_result_is_the_start() -> None:
    async with scene(Faults().fail(1), samples=SAMPLES) as play:
        await play.attach(TWO_NODES[:3])
        request = play.request(TWO_NODES[:3], "parallel")
        members = tuple(dataclasses.replace(one, weight=float(one.client == 1)) for one in request.members)
        outcome = await play.run_request(dataclasses.replace(request, members=members))
        assert await play.result(outcome) == START
        assert play.done == [0, 2]
        assert isinstance(outcome, GroupResult)
        assert outcome.samples == SAMPLES[0] + SAMPLES[2]


async def test_a_group_may_start_from_the_mean_of_its_members_models() -> None:
    async with scene(samples=SAMPLES) as play:
        await play.attach(TWO_NODES)
        play.nodes["n2"].store.put("own", model(4.0))
        play.top_server.put("shared", model(8.0))
        parts = (Part(model(8.0).ref("shared"), "", 3.0), Part(model(4.0).ref("own"), "n2", 1.0))
        outcome = await play.run(TWO_NODES, "parallel", start=ModelRef("mean"), parts=parts)
        assert isinstance(outcome, GroupResult)
        assert outcome.ref is not None
        total = sum(SAMPLES[client] * np.float64(step(client, 7.0)) for client in range(6))
        assert value_of(await play.store.get(outcome.ref.id)) == total / sum(SAMPLES[client] for client in range(6))
        assert [len(store) for store in (play.store, play.nodes["n1"].store, play.nodes["n2"].store)] == [1, 0, 1]


async def test_what_is_refused_does_not_stay_until_the_end() -> None:
    here = []
    async with scene() as play:

        def far_from_the_sixth_on(client: int, start: float) -> float:
            here.append(len(play.store))
            return start + (1 if client < 5 else 1000)

        play.rule = far_from_the_sixth_on
        await play.run(hosted(n1=range(30)), "parallel", most_update_ratio=2.0)
        assert len(play.skipped) == 25
        assert max(here) <= AHEAD_PER_NODE + 2  # and the start, and the one that is folded


@pytest.mark.parametrize("far", [0, 1, 2, 5])
async def test_the_first_updates_are_judged_as_soon_as_there_are_three(far: int) -> None:
    rule: Callable[[int, Any], Any] = lambda client, w: w + (100 if client == far else 1 + client / 10)  # noqa: E731
    async with scene(rule=rule) as play:
        outcome = await play.run(TWO_NODES, "parallel", most_update_ratio=5.0)
        others = [client for client in range(6) if client != far]
        total = sum(float((client + 1) * np.float64(rule(client, START))) for client in others)
        assert await play.result(outcome) == total / sum(client + 1 for client in others)
        assert {client: why and why.code for client, why in play.skipped.items()} == {far: FailureCode.LONG_UPDATE}
        assert play.done == others
        play.assert_released(here=1)


async def test_two_updates_cannot_be_judged() -> None:
    rule = lambda client, w: w + (100 if client == 0 else 1)  # noqa: E731
    async with scene(rule=rule) as play:
        await play.run(TWO_NODES[:2], "parallel", most_update_ratio=5.0)
        assert play.done == [0, 1]
