"""No round begins with fewer clients than the run needs."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from fedgsp.errors import RunError
from fedgsp.settings.run import RunConfig
from tests.support.callers import ANYBODY
from tests.support.clock import Clock
from tests.support.hellos import hello, membership
from tests.support.recorder import Recorder
from tests.support.scripted import let_others_run
from top_server.nodes.departures import RETURN_S, RETURN_TIMEOUT_S, RETURNS_S, WITHOUT, Departed
from top_server.nodes.membership import Membership
from top_server.nodes.node import Node
from top_server.nodes.waiting import wait_for_nodes, wait_for_return, wait_for_round

CONFIG = RunConfig(min_clients=3, join_timeout=100.0)


async def admitted(members: Membership, name: str, *clients: int) -> Node:
    node = await members.admit(hello(name, clients), ANYBODY)
    assert isinstance(node, Node), node
    return node


async def joined(members: Membership, name: str, *clients: int) -> Node:
    members.departures.counting = True  # the run has begun
    return await admitted(members, name, *clients)


def absent(members: Membership) -> dict[str, tuple[set[int], str]]:
    """Nodes that are away, with their clients and the reason."""
    return {gone.node: (set(gone.clients), gone.reason) for gone, _ in members.departures.away()}


def waiting(members: Membership, recorder: Recorder, config: RunConfig = CONFIG) -> asyncio.Task[None]:
    return asyncio.create_task(wait_for_round(config, members, cast("Any", recorder), 7))


async def test_a_round_begins_at_once_if_enough_clients_are_there() -> None:
    members, recorder = membership()
    await joined(members, "n0", 0, 1, 2)
    await waiting(members, recorder)
    assert not recorder.of_kind("round_waits")


async def test_a_round_waits_for_enough_clients_and_says_so() -> None:
    members, recorder = membership()
    await joined(members, "n0", 0, 1)
    task = waiting(members, recorder)
    await let_others_run()
    assert not task.done()
    [waits] = recorder.of_kind("round_waits")
    assert waits.items() >= {"round": 7, "clients": 2, "needed": 3, "timeout": 100.0}.items()
    await joined(members, "n1", 2)
    await task
    [waited] = recorder.of_kind("round_waited")
    assert (waited["round"], waited["clients"]) == (7, 3)


async def test_a_run_ends_if_too_few_clients_are_there_for_the_whole_timeout() -> None:
    members, recorder = membership()
    clock = Clock()
    await joined(members, "n0", 0, 1)
    task = waiting(members, recorder)
    await let_others_run()
    clock.advance(101)
    with pytest.raises(RunError, match="only 2 of 3 clients were there for 100 s before round 7"):
        await task


@pytest.mark.parametrize(
    ("started", "what"), [({"local_nodes": 2}, "still load the task or its data"), ({}, "start the other nodes, or")]
)
async def test_nodes_that_do_not_join_are_still_loading_if_the_run_has_started_them(
    started: dict[str, Any], what: str
) -> None:
    members, recorder = membership()
    clock = Clock()
    await joined(members, "n0", 0)
    config = RunConfig(min_nodes=2, join_timeout=100.0, **started)
    task = asyncio.create_task(wait_for_nodes(config, members, cast("Any", recorder)))
    await let_others_run()
    clock.advance(101)
    with pytest.raises(RunError, match=f"only 1 of 2 nodes .* joined within 100 s; .*{what}"):
        await task


@pytest.mark.parametrize("late", [True, False])
async def test_a_first_node_that_is_late_or_never_comes_does_not_start_the_wait_anew(late: bool) -> None:
    members, recorder = membership()
    clock = Clock()
    config = RunConfig(min_nodes=2, join_timeout=100.0)
    task = asyncio.create_task(wait_for_nodes(config, members, cast("Any", recorder)))
    await let_others_run()
    clock.advance(90)
    if late:
        await joined(members, "n0", 0)
        await let_others_run()
    clock.advance(11)
    with pytest.raises(RunError, match=rf"only {int(late)} of 2 nodes .* joined within 100 s"):
        async with asyncio.timeout(5):
            await task


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"min_nodes": 7}, "--min-nodes is 7, and the run itself starts 2 nodes; start the others, too"),
        ({"min_clients": 7}, "--min-clients is 7, and the nodes of the run host 4 clients; start the others, too"),
        ({"min_nodes": 2, "min_clients": 4}, ""),
    ],
)
async def test_a_run_that_starts_fewer_nodes_than_it_waits_for_says_so_at_once(
    more: dict[str, Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Others may join a run with local nodes, so that it is not refused."""
    members, recorder = membership()
    clock = Clock()
    await joined(members, "n0", 0)
    config = RunConfig(local_nodes=2, clients=4, join_timeout=100.0, **more)
    task = asyncio.create_task(wait_for_nodes(config, members, cast("Any", recorder)))
    await let_others_run()
    assert caplog.messages == ([what] if what else [])
    clock.advance(101)
    with pytest.raises(RunError):
        await task


async def test_without_a_number_a_round_needs_one_client() -> None:
    members, recorder = membership()
    await joined(members, "n0", 0)
    await waiting(members, recorder, RunConfig())
    assert not recorder.of_kind("round_waits")


async def test_a_round_that_had_to_wait_also_waits_for_the_other_clients_that_are_away() -> None:
    members, recorder = membership()
    clock = Clock()
    for name, client in (("n0", 0), ("n1", 1)):
        await members.leave(await joined(members, name, client), "its stream was lost")
    clock.advance(600)
    task = waiting(members, recorder, RunConfig())
    await let_others_run()
    await joined(members, "n0", 0)
    await let_others_run()
    assert not task.done()
    await joined(members, "n1", 1)
    await task


async def test_a_round_that_had_to_wait_does_not_wait_for_ever_for_the_others() -> None:
    members, recorder = membership()
    clock = Clock()
    for name, client in (("n0", 0), ("n1", 1)):
        await members.leave(await joined(members, name, client), "its stream was lost")
    task = waiting(members, recorder, RunConfig())
    await let_others_run()
    clock.advance(RETURN_S + 0.1)
    await let_others_run()
    await joined(members, "n0", 0)
    await let_others_run()
    clock.advance(RETURN_TIMEOUT_S + 0.1)
    await task


async def test_a_node_that_left_a_moment_ago_may_come_back_before_the_round_begins() -> None:
    members, recorder = membership()
    clock = Clock()
    await joined(members, "n1", 1)
    await members.leave(await joined(members, "n0", 0), "its stream was lost")
    task = waiting(members, recorder, RunConfig())
    await let_others_run()
    assert not task.done()
    clock.advance(RETURN_S + 0.1)
    await task
    assert [gone.node for gone, _ in members.departures.away()] == ["n0"]
    await members.leave(await joined(members, "n0", 0), "its stream was lost")
    again = waiting(members, recorder, RunConfig())
    await let_others_run()
    await joined(members, "n0", 0)
    await again
    assert members.departures.away() == []


async def test_a_node_that_comes_back_is_told_with_the_time_that_it_was_away() -> None:
    members, recorder = membership()
    clock = Clock()
    await members.leave(await joined(members, "n0", 0), "its stream was lost")
    clock.advance(360)
    await joined(members, "n0", 0)
    first, second = recorder.of_kind("node_joined")
    assert "away" not in first
    assert second["away"] == pytest.approx(360, abs=1)


async def test_nodes_that_leave_in_turn_cannot_keep_a_round_from_beginning(caplog: pytest.LogCaptureFixture) -> None:
    members, recorder = membership()
    clock, seconds = Clock(), 0.0
    present = [await joined(members, f"n{number}", number) for number in range(5)]
    await members.leave(await joined(members, "gone", 9), "its connection ended")
    clock.advance(2 * RETURN_S)
    await members.leave(present[3], "its connection ended")
    task = waiting(members, recorder)
    while not task.done():
        for number in (4, 3):  # one of the two is always away
            await members.leave(present[number], "its connection ended")
            await let_others_run()
            present[7 - number] = await joined(members, f"n{7 - number}", 7 - number)
            clock.advance(0.5 * RETURN_S)
            seconds += 0.5 * RETURN_S
            await let_others_run()
        assert seconds < 2 * RETURNS_S
    assert "nodes still leave after 14 s of waiting; not waiting any longer for n" in caplog.text
    assert "for gone" not in caplog.text


async def test_a_round_waits_for_a_node_that_left_a_moment_ago(caplog: pytest.LogCaptureFixture) -> None:
    members, recorder = membership()
    nodes = [await joined(members, f"n{number}", number) for number in range(4)]
    await members.leave(nodes[0], "its connection ended")
    task = waiting(members, recorder)
    await let_others_run()
    assert not task.done()
    await joined(members, "n0", 0)
    await task
    assert not caplog.text


async def test_a_node_of_a_resumed_run_that_leaves_again_before_the_first_order_is_away_for_its_own_reason() -> None:
    members, recorder = membership()
    clock = Clock()
    members.departures.restore([Departed("before", (7,), "its stream was lost", 0.0)])
    nodes = {"stays": {0}, "leaves": {1, 2}, "never": {3}, "less": {4, 5}}
    task = asyncio.create_task(wait_for_return(nodes, members, cast("Any", recorder), 60.0))
    await admitted(members, "stays", 0)
    await admitted(members, "less", 4)
    for name, clients in (("leaves", (1, 2)), ("before", (7,))):
        await members.leave(await admitted(members, name, *clients), "its VPN was cut")
    await let_others_run()
    clock.advance(RETURN_TIMEOUT_S + 1)
    await task
    assert absent(members) == {
        "leaves": ({1, 2}, "its VPN was cut"),
        "before": ({7}, "its VPN was cut"),
        "never": ({3}, "it has not come back since the run was resumed"),
        "less": ({5}, WITHOUT),
    }
    assert recorder.of_kind("clients_missing")[0]["clients"] == [3, 5]
    await admitted(members, "leaves", 1, 2)
    assert recorder.of_kind("node_joined")[-1]["away"] == pytest.approx(RETURN_TIMEOUT_S + 1, abs=1)


async def test_a_node_that_leaves_between_the_wait_for_nodes_and_the_first_order_is_away() -> None:
    members, recorder = membership()
    early = await admitted(members, "early", 9)
    task = asyncio.create_task(wait_for_nodes(RunConfig(min_nodes=3), members, cast("Any", recorder)))
    await members.leave(early, "its connection ended")
    await admitted(members, "stays", 0)
    leaves = await admitted(members, "leaves", 1)
    await let_others_run()
    assert not task.done()
    await admitted(members, "late", 2)
    await task
    await members.leave(leaves, "its VPN was cut")
    assert absent(members) == {"leaves": ({1}, "its VPN was cut")}
