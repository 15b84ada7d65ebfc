"""Distance: how far the group's start is from every member's own model, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import (
    Evaluate,
    Evaluated,
    FailureCode,
    GroupResult,
    Member,
    MemberDone,
    ModelRef,
    Part,
    TrainingSettings,
)
from tests.support.faults import Faults
from tests.support.scene import START, Scene, hosted, scene
from tests.support.scripted import model

TWO_NODES = hosted(n1=[0, 2], n2=[1])


async def with_own_models(play: Scene, *values: float) -> list[Member]:
    await play.attach(TWO_NODES)
    members = []
    for member, value in zip(TWO_NODES, values, strict=True):
        play.nodes[member.node].store.put(f"own {member.client}", model(value))
        own = Part(model(value).ref(f"own {member.client}"), member.node)
        members.append(dataclasses.replace(member, start=own))
    return members


def answers(play: Scene) -> dict[int, Evaluated]:
    done = [event.kind for event in play.events if isinstance(event.kind, MemberDone)]
    return {one.client: one.result for one in done if isinstance(one.result, Evaluated)}


async def test_members_tell_a_distance_and_no_counts() -> None:
    async with scene() as play:
        members = await with_own_models(play, 3.0, 4.0, 5.0)
        outcome = await play.run(members, "distance")
        assert outcome == GroupResult(ModelRef(""), 0, 0, 24)
        found = answers(play)
        assert {client: answer.squared_distance for client, answer in found.items()} == {0: 4.0, 1: 9.0, 2: 16.0}
        assert {(answer.samples, answer.correct, answer.loss_sum) for answer in found.values()} == {(0, 0, 0.0)}


async def test_all_are_asked_about_the_groups_start_which_no_node_keeps_and_own_models_stay() -> None:
    async with scene() as play:
        members = await with_own_models(play, START, START, START)
        await play.run(members, "distance", training=TrainingSettings("sgd", 1, 5, 0.01, 77))
        asked = [order.work for node in play.nodes.values() for order in node.orders]
        works = [work for work in asked if isinstance(work, Evaluate)]
        assert {work.start.model_id for work in works if work.start} == {"start"}
        assert sorted(work.compared_with for work in works) == ["own 0", "own 1", "own 2"]
        assert all(work.only_compare and not work.personalised for work in works)
        assert {name: len(node.store) for name, node in play.nodes.items()} == {"n1": 2, "n2": 1}
        assert {answer.squared_distance for answer in answers(play).values()} == {0.0}


async def test_a_member_whose_own_model_is_gone_is_skipped() -> None:
    async with scene() as play:
        members = await with_own_models(play, 3.0, 4.0, 5.0)
        play.nodes["n1"].store.release(["own 2"])
        await play.run(members, "distance")
        assert sorted(answers(play)) == [0, 1]
        failure = play.skipped[2]
        assert failure is not None
        assert failure.code is FailureCode.NO_SUCH_MODEL


@pytest.mark.parametrize(
    ("program", "samples", "personalised"), [("compare", {1, 2, 3}, False), ("evaluate", {10}, True)]
)
async def test_other_surveys_count_too(program: str, samples: set[int], personalised: bool) -> None:
    async with scene() as play:
        members = await with_own_models(play, 3.0, 4.0, 5.0)
        await play.run(members, program)
        asked = [order.work for node in play.nodes.values() for order in node.orders]
        works = [work for work in asked if isinstance(work, Evaluate)]
        assert {(work.only_compare, work.personalised) for work in works} == {(False, personalised)}
        assert {answer.samples for answer in answers(play).values()} == samples


async def test_a_member_that_fails_is_skipped_and_the_others_are_heard() -> None:
    async with scene(Faults().fail(0).lose_node("n2", before=1)) as play:
        members = await with_own_models(play, 3.0, 4.0, 5.0)
        await play.run(members, "distance")
        assert sorted(answers(play)) == [2]
        assert set(play.skipped) == {0, 1}
