"""A group whose start is the mean of its members' models."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import Failure, FailureCode, FinishedHop, GroupResult, Member, ModelRef, Part, PartLost
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, scene
from tests.support.scripted import model

TWO_NODES = hosted(n1=[0], n2=[1])
START = ModelRef("mean of the parts")


async def parts_of(play: Scene, members: list[Member], **held: float) -> tuple[Part, ...]:
    """A part per member, of weight 1 + client; those that are not held are lost with their nodes."""
    await play.attach(members)
    parts = []
    for member in members:
        value = held.get(f"m{member.client}")
        if value is not None:
            play.nodes[member.node].store.put(f"own {member.client}", model(value))
        ref = model(value or 0.0).ref(f"own {member.client}")
        parts.append(Part(ref, member.node, 1.0 + member.client, member.client))
    return tuple(parts)


def lost(play: Scene) -> list[int]:
    return [event.kind.client for event in play.events if isinstance(event.kind, PartLost)]


async def test_all_start_from_the_weighted_mean_of_the_parts() -> None:
    async with scene(rule=lambda _, w: w) as play:
        parts = await parts_of(play, TWO_NODES, m0=3.0, m1=6.0)
        outcome = await play.run(TWO_NODES, "parallel", start=START, parts=parts)
        assert isinstance(outcome, GroupResult)
        assert lost(play) == []
        assert outcome.ref is not None
        assert float((await play.store.get(outcome.ref.id)).arrays["w"][0]) == pytest.approx((3 + 2 * 6) / 3)


async def test_a_part_that_is_lost_is_left_out_and_told() -> None:
    async with scene(rule=lambda _, w: w) as play:
        parts = await parts_of(play, TWO_NODES, m1=6.0)
        outcome = await play.run(TWO_NODES, "parallel", start=START, parts=parts)
        assert isinstance(outcome, GroupResult)
        assert lost(play) == [0]
        assert play.done == [0, 1]
        assert outcome.ref is not None
        assert float((await play.store.get(outcome.ref.id)).arrays["w"][0]) == 6.0


async def test_a_group_whose_parts_are_all_lost_fails_with_the_reason_and_names_each() -> None:
    async with scene() as play:
        parts = await parts_of(play, TWO_NODES)
        outcome = await play.run(TWO_NODES, "parallel", start=START, parts=parts)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NO_SUCH_MODEL
        assert lost(play) == [0, 1]


async def test_parts_that_do_not_fit_each_other_fail_the_group() -> None:
    async with scene() as play:
        parts = await parts_of(play, TWO_NODES, m0=3.0, m1=6.0)
        parts = (dataclasses.replace(parts[0], weight=0.0), parts[1])
        outcome = await play.run(TWO_NODES, "parallel", start=START, parts=parts)
        assert isinstance(outcome, Failure)
        assert "cannot weigh" in outcome.detail


async def test_a_node_that_does_not_send_its_part_harms_nobody_else() -> None:
    async with scene(Faults().never_send_up("n1"), rule=lambda _, w: w) as play:
        parts = await parts_of(play, TWO_NODES, m0=3.0, m1=6.0)
        outcome = await play.run(TWO_NODES, "parallel", start=START, parts=parts)
        assert isinstance(outcome, GroupResult)
        assert lost(play) == [0]
        assert play.done == [0, 1]


async def test_parts_that_are_lost_are_asked_for_once() -> None:
    async with scene(Faults().never_send_up("n1", always=True).never_send_up("n2", always=True)) as play:
        parts = await parts_of(play, TWO_NODES, m0=3.0, m1=6.0)
        outcome = await play.run(TWO_NODES, "parallel", start=START, parts=parts)
        assert isinstance(outcome, Failure)
        assert play.asked_of == ["n1", "n2"]
        assert lost(play) == [0, 1]


async def test_parts_are_asked_for_again_if_their_node_was_lost_and_came_back() -> None:
    async with scene(Faults().restart_node_when_collected("n1"), rule=lambda _, w: w) as play:
        parts = await parts_of(play, TWO_NODES[:1], m0=3.0)
        outcome = await play.run(TWO_NODES[:1], "parallel", start=START, parts=parts)
        assert isinstance(outcome, Failure)  # it has come back without its models
        assert play.asked_of == ["n1"]
        assert lost(play) == [0, 0]  # asked twice


async def test_a_chain_that_goes_on_does_not_ask_for_the_parts_of_its_start() -> None:
    async with scene(rule=lambda _, w: w) as play:
        parts = await parts_of(play, TWO_NODES)  # all are lost
        play.nodes["n1"].store.put("run/1/0/relay/0.0", model(5.0))
        finished = (FinishedHop(TWO_NODES[0], model(5.0).ref("run/1/0/relay/0.0")),)
        outcome = await play.run(TWO_NODES, "relay", start=START, parts=parts, finished=finished, attempt=1)
        assert isinstance(outcome, GroupResult)
        assert lost(play) == []
        assert play.done == [1]
