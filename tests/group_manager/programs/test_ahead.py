"""Parallel, members on several machines: their models are on their way at the same time, as far as memory allows."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Discriminated, Failure, FailureCode, Part, Results
from fedgsp.tensors.weights import Weights
from group_manager.members import Members
from group_manager.programs import window
from tests.support.faults import Faults
from tests.support.scene import START, Scene, hosted, scene, step
from tests.support.scripted import let_others_run, model
from tests.support.scripted_networks import Script, plan

TWO_NODES = hosted(n1=[0, 2, 4], n2=[1, 3, 5])
FOUR_NODES = hosted(n1=[0], n2=[1], n3=[2], n4=[3])
#: Memory for the models of all members.
ROOM = 4 * 8


def nobody() -> None:
    """Who asks for room and does not wait."""


def is_all_free(play: Scene, models: int = 4) -> bool:
    """Whether there is room for so many models, and no more: what was given was given once. Takes it."""
    return all(play.room.take(8, nobody) for _ in range(models)) and not play.room.take(8, nobody)


def one_count_too_many(client: int, _: int, answer: Discriminated, made: Weights | None) -> Any:
    """Of client 1."""
    return dataclasses.replace(answer, correct=(*answer.correct, 0) if client == 1 else answer.correct), made


@pytest.fixture(autouse=True)
def _asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No member brings its model unasked."""
    monkeypatch.setattr(window, "MOST_BROUGHT_BYTES", 0)


def mean(*clients: int) -> float:
    """The mean weighted by samples, folded one by one in float64."""
    total = np.float64(0)
    for client in clients:
        total = total + np.float64(client + 1) * np.float64(step(client, START))
    return float(total / sum(client + 1 for client in clients))


@pytest.mark.timeout(20)
async def test_a_site_sends_while_another_one_is_sending() -> None:
    faults = Faults().hold_upload("n1", until="n2").hold_upload("n2", until="n3").hold_upload("n3", until="n4")
    async with scene(faults) as play:
        outcome = await play.run(FOUR_NODES, "parallel")
        assert await play.result(outcome) == mean(0, 1, 2, 3)
        assert play.done == [0, 1, 2, 3]


@pytest.mark.timeout(20)
async def test_models_that_are_collected_come_at_the_same_time_too() -> None:
    async with scene(Faults().hold_upload("n1", until="n4")) as play:
        await play.run(FOUR_NODES, "alone", results=Results.COLLECTED)
        assert play.done == [0, 1, 2, 3]
        assert len(play.store) == 4


@pytest.mark.timeout(20)
async def test_and_so_do_models_that_clients_keep() -> None:
    async with scene(Faults().hold_upload("n1", until="n4")) as play:
        await play.attach(FOUR_NODES)
        members = []
        for member in FOUR_NODES:
            own, found = f"own {member.client}", model(float(member.client))
            play.nodes[member.node].store.put(own, found)
            members.append(dataclasses.replace(member, start=Part(found.ref(own), member.node)))
        await play.run(members, "collect")
        assert play.done == [0, 1, 2, 3]


@pytest.mark.timeout(20)
async def test_and_so_do_discriminators() -> None:
    async with scene(Faults().hold_upload("n1", until="n4")) as play:
        await play.attach(FOUR_NODES)
        for node in play.nodes.values():
            node.script = Script()
        await play.run(FOUR_NODES, "discriminate", start=None, discrimination=plan())
        assert not play.skipped


async def test_a_node_sends_one_model_after_the_other() -> None:
    async with scene(Faults().hold_upload("n1", until="n2").hold(5, until=4)) as play:
        await play.attach(TWO_NODES)
        outcome = await play.run(TWO_NODES, "parallel")
        assert play.asked_of[:2] == ["n1", "n2"]  # n1 had trained 2, too, and was not asked for it meanwhile
        assert await play.result(outcome) == mean(*range(6))


async def test_nodes_that_share_a_link_send_one_after_the_other() -> None:
    faults = Faults().hold(0, until=3).hold_upload("n2", until="n4")
    async with scene(faults) as play:
        await play.attach(FOUR_NODES)
        for node, host in (("n2", "10.0.0.1"), ("n3", "10.0.0.1"), ("n4", "10.0.0.2")):
            play.nodes[node].session.host = host
        outcome = await play.run(FOUR_NODES, "parallel")
        assert play.asked_of[:2] == ["n2", "n4"]
        assert await play.result(outcome) == mean(0, 1, 2, 3)


async def test_nodes_of_this_machine_are_asked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "near", lambda _, __: True)
    async with scene(Faults().hold(0, until=3)) as play:
        outcome = await play.run(FOUR_NODES, "parallel")
        assert play.asked_of == ["n1", "n2", "n3", "n4"]
        assert play.most_here <= 2  # one is folded while the next comes
        assert await play.result(outcome) == mean(0, 1, 2, 3)


@pytest.mark.parametrize("models", [0, 1, 2, 3])
async def test_only_so_many_models_come_before_their_turn(models: int) -> None:
    # The first member is the last to have trained, so that nothing can be folded before.
    async with scene(Faults().hold(0, until=3), ahead_bytes=8 * models) as play:
        await play.attach(FOUR_NODES)
        running = asyncio.create_task(play.run(FOUR_NODES, "parallel"))
        await play.answered[3].wait()
        outcome = await running
        assert set(play.asked_of[:models]) <= {"n2", "n3", "n4"}
        assert play.asked_of[models] == "n1"
        assert await play.result(outcome) == mean(0, 1, 2, 3)
        assert is_all_free(play, models)


async def test_only_so_many_models_are_on_their_way_at_once() -> None:
    async with scene(Faults().hold(0, until=3).hold_upload("n2", until="n1"), transfers=1) as play:
        outcome = await play.run(FOUR_NODES, "parallel")
        # n2 is still sending when the turn of n1 comes, and nobody else was asked meanwhile.
        assert play.asked_of[:2] == ["n2", "n1"]
        assert await play.result(outcome) == mean(0, 1, 2, 3)


async def test_a_group_gets_the_room_that_another_one_gives() -> None:
    async with scene(Faults().hold(0, until=7), ahead_bytes=8) as play:
        assert play.room.take(8, nobody)  # by another group
        await play.attach(FOUR_NODES)
        running = asyncio.create_task(play.run(FOUR_NODES, "parallel"))
        await play.answered[3].wait()
        play.room.came()
        await let_others_run()
        assert play.asked_of == []
        play.room.give(8)
        await play.asked["n2"].wait()
        play.answered[7].set()
        assert await play.result(await running) == mean(0, 1, 2, 3)


async def test_networks_of_an_answer_that_cannot_be_used_do_not_stay() -> None:
    async with scene() as play:
        stayed: list[str] = []

        async def look(_: int, exchange: int) -> None:
            if exchange > 1:  # the answer of exchange 1 was refused
                stayed.extend(one for one in play.store.ids("run/1/0/discriminators/") if one.endswith("/1/1"))

        await play.attach(FOUR_NODES)
        for node in play.nodes.values():
            node.script = Script(change=one_count_too_many, before=look)
        await play.run(FOUR_NODES, "discriminate", start=None, discrimination=plan(judge_every=1))
        assert list(play.skipped) == [1]
        assert play.asked_of.count("n2") == 2
        assert play.asked_of.count("n1") > 2
        assert not stayed


async def test_a_model_that_did_not_come_is_asked_for_again_in_its_turn() -> None:
    async with scene(Faults().hold(0, until=3).refuse_upload("n3")) as play:
        outcome = await play.run(FOUR_NODES, "parallel")
        assert play.asked_of.count("n3") == 2
        assert await play.result(outcome) == mean(0, 1, 2, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Faults().fail(1),
        lambda: Faults().collect_another("n2"),
        lambda: Faults().lose_node_when_collected("n2"),
        lambda: Faults().hold(0, until=2).lose_node("n2", after=1),
        lambda: Faults().stall(1),
    ],
    ids=["fails", "another-model", "lost-when-asked", "lost", "stalls"],
)
async def test_a_member_without_a_model_takes_no_room_for_good(wrong: Callable[[], Faults]) -> None:
    async with scene(wrong(), ahead_bytes=ROOM) as play:
        outcome = await play.run(FOUR_NODES, "parallel")
        assert list(play.skipped) == [1]
        assert await play.result(outcome) == mean(0, 2, 3)
        assert is_all_free(play)


async def test_a_group_that_is_cancelled_takes_no_room_for_good() -> None:
    async with scene(Faults().hold_for_good(0), ahead_bytes=ROOM) as play:
        await play.attach(FOUR_NODES)
        running = asyncio.create_task(play.run(FOUR_NODES, "parallel"))
        await play.asked["n4"].wait()
        assert play.room.take(8, nobody)
        assert not play.room.take(8, nobody)  # the others have the rest
        play.room.came()
        play.room.give(8)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert is_all_free(play)
        play.assert_released()


async def test_members_without_a_weight_send_nothing() -> None:
    async with scene() as play:
        await play.attach(FOUR_NODES)
        request = play.request(FOUR_NODES, "parallel")
        object.__setattr__(request.members[1], "weight", 0.0)
        outcome = await play.run_request(request)
        assert "n2" not in play.asked_of
        assert await play.result(outcome) == mean(0, 2, 3)


async def test_a_group_in_which_nobody_trains_ends() -> None:
    async with scene(Faults().fail(0).fail(1).fail(2).fail(3)) as play:
        outcome = await play.run(FOUR_NODES, "parallel")
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.TASK_RAISED
        assert play.asked_of == []
