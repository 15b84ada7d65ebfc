"""Surveys: one question to every member."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import (
    Described,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    GroupResult,
    MemberDone,
    ModelRef,
    Order,
    Part,
    RelayMode,
    Release,
    Result,
    SourceKind,
    Trained,
    TrainingSettings,
)
from tests.support.faults import Faults
from tests.support.scene import START, Scene, hosted, scene
from tests.support.scripted import model, value_of

TWO_NODES = hosted(n1=[0, 2], n2=[1])


def orders(play: Scene) -> list[Order]:
    return [order for node in play.nodes.values() for order in node.orders]


def results(play: Scene) -> dict[int, Result | None]:
    return {e.kind.client: e.kind.result for e in play.events if isinstance(e.kind, MemberDone)}


async def test_describing_collects_every_histogram_and_makes_no_model() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, "describe")
        assert outcome == GroupResult(ModelRef(""), 0, 0, 0)
        results = {e.kind.client: e.kind.result for e in play.events if isinstance(e.kind, MemberDone)}
        assert results == {client: Described((client, 1)) for client in range(3)}
        play.assert_released()


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.MANAGER])
async def test_evaluating_asks_every_member_about_the_start_model(relay: RelayMode) -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, "evaluate", relay=relay)
        results = [e.kind.result for e in play.events if isinstance(e.kind, MemberDone)]
        assert [(r.correct, r.samples, r.loss_sum) for r in results if isinstance(r, Evaluated)] == [
            (0, 10, START),
            (1, 10, START),
            (2, 10, START),
        ]
        assert isinstance(outcome, GroupResult)
        assert outcome.bytes_relayed == 24
        play.assert_released()


@pytest.mark.parametrize("program", ["describe", "evaluate"])
@pytest.mark.parametrize(
    ("faults", "skipped"),
    [
        (lambda: Faults().fail(1), {1: FailureCode.TASK_RAISED}),
        (lambda: Faults().stall(2), {2: FailureCode.STALLED}),
        (lambda: Faults().lose_node("n1", before=0), {0: FailureCode.NODE_LOST, 2: FailureCode.NODE_LOST}),
    ],
)
async def test_a_member_without_an_answer_is_skipped_and_the_others_are_heard(
    program: str, faults: type[Faults], skipped: dict[int, FailureCode]
) -> None:
    async with scene(faults()) as play:
        outcome = await play.run(TWO_NODES, program)
        assert isinstance(outcome, GroupResult)
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == skipped
        assert sorted(play.done) == [client for client in range(3) if client not in skipped]


@pytest.mark.parametrize(
    ("program", "part"),
    [("evaluate", (False, False)), ("evaluate-training", (True, False)), ("evaluate-validation", (False, True))],
)
async def test_members_are_told_the_part_of_their_data_and_the_runs_seed(
    program: str, part: tuple[bool, bool]
) -> None:
    async with scene() as play:
        await play.run(TWO_NODES, program, training=TrainingSettings("sgd", 1, 5, 0.01, 77))
        asked = [order.work for order in orders(play) if isinstance(order.work, Evaluate)]
        # a client without a head of its own yet makes one from the seed
        told = [(work.training_part, work.validation_part, work.settings and work.settings.seed) for work in asked]
        assert told == [(*part, 77)] * 3


async def test_members_are_evaluated_on_their_own_models_where_they_have_some() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        play.nodes["n1"].store.put("own", model(5.0))
        play.top_server.put("group", model(6.0))
        members = [
            dataclasses.replace(TWO_NODES[0], start=Part(model(5.0).ref("own"), "n1")),
            dataclasses.replace(TWO_NODES[1], start=Part(model(6.0).ref("group"))),
            TWO_NODES[2],
        ]
        await play.run(members, "evaluate")
        found = {client: result for client, result in results(play).items() if isinstance(result, Evaluated)}
        assert {client: result.loss_sum for client, result in found.items()} == {0: 5.0, 1: 6.0, 2: START}
        assert [result.source.kind for result in found.values() if result.source] == [
            SourceKind.OWN,
            SourceKind.TOP_SERVER,
            SourceKind.TOP_SERVER,
        ]
        assert len(play.nodes["n1"].store) == 1  # what was its own stays
        assert len(play.nodes["n2"].store) == 0


async def test_comparing_is_of_everyones_model_with_each_members_own() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        members = []
        for member, value in zip(TWO_NODES, (3.0, 4.0, 5.0), strict=True):
            play.nodes[member.node].store.put(f"own {member.client}", model(value))
            own = Part(model(value).ref(f"own {member.client}"), member.node)
            members.append(dataclasses.replace(member, start=own))
        await play.run(members, "compare")
        found = {client: result for client, result in results(play).items() if isinstance(result, Evaluated)}
        assert {client: result.loss_sum for client, result in found.items()} == dict.fromkeys(range(3), START)
        assert {client: result.squared_distance for client, result in found.items()} == {0: 4.0, 1: 9.0, 2: 16.0}


async def test_collecting_brings_the_members_own_models_here_and_says_which_are_gone() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        play.nodes["n1"].store.put("own 0", model(5.0))
        owns = [Part(model(5.0).ref(f"own {member.client}"), member.node) for member in TWO_NODES]
        members = [dataclasses.replace(member, start=own) for member, own in zip(TWO_NODES, owns, strict=True)]
        await play.run(members[:2], "collect")
        (collected,) = results(play).values()
        assert isinstance(collected, Trained)
        assert collected.ref == model(5.0).ref("own 0")
        assert value_of(await play.store.get("own 0")) == 5.0
        assert play.skipped == {1: Failure(FailureCode.NO_SUCH_MODEL, "this node has model 'own 1' no more")}
        assert "own 0" in play.nodes["n1"].store  # it is still its client's own


async def test_forgetting_lets_the_nodes_of_those_who_have_own_models_release_them() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        await play.nodes["n2"].leave()  # with what it had
        node = play.nodes["n1"]
        for model_id in ("own 0", "of another"):
            node.store.put(model_id, model(5.0))
        owns = {client: Part(model(5.0).ref(f"own {client}"), TWO_NODES[client].node) for client in (0, 1)}
        members = [dataclasses.replace(member, start=owns.get(member.client)) for member in TWO_NODES]
        assert await play.run(members, "forget", start=None) == GroupResult(ModelRef(""), 0, 0, 0)
        told = [(order.client, order.work) for order in node.orders if order.key and order.key.task == "forget"]
        assert told == [(0, Release(("own 0",), own=True))]
        assert ["own 0" in node.store, "of another" in node.store] == [False, True]
        assert (play.done, play.skipped) == ([], {})
