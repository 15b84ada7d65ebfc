"""Alone: every member from its own start, nothing merged."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupResult,
    Member,
    MemberDone,
    ModelRef,
    Part,
    RelayMode,
    Results,
    Reveal,
    SendUp,
    SourceKind,
    Train,
    Trained,
)
from fedgsp.transfers.pipes import machine
from tests.support.faults import Faults
from tests.support.scene import START, Scene, hosted, relayed, scene, step
from tests.support.scripted import model, value_of

TWO_NODES = hosted(n1=[0, 2], n2=[1])
SIZE = 8


def trained(play: Scene) -> dict[int, Trained]:
    found = {e.kind.client: e.kind.result for e in play.events if isinstance(e.kind, MemberDone)}
    return {client: result for client, result in found.items() if isinstance(result, Trained)}


async def with_own_models(play: Scene, members: list[Member], **values: float) -> list[Member]:
    """Members that start from a model of their own, held by their nodes: m0=5.0."""
    await play.attach(members)
    own = []
    for member in members:
        value = values.get(f"m{member.client}")
        if value is not None:
            model_id = f"own {member.client}"
            play.nodes[member.node].store.put(model_id, model(value))
            member = dataclasses.replace(member, start=Part(model(value).ref(model_id), member.node))
        own.append(member)
    return own


def left_at(play: Scene, node: str) -> int:
    return len(play.nodes[node].store)


async def test_members_train_from_their_own_models_and_no_weights_move() -> None:
    async with scene() as play:
        members = await with_own_models(play, TWO_NODES, m0=5.0, m1=6.0, m2=7.0)
        outcome = await play.run(members, "alone", start=None, results=Results.RETAINED)
        assert outcome == GroupResult(ModelRef(""), 1 + 2 + 3, 0, 0)
        assert {s.kind for start in play.starts().values() for s in start.sources} == {SourceKind.OWN}
        for member, value in zip(members, (5.0, 6.0, 7.0), strict=True):
            ref = trained(play)[member.client].ref
            assert ref is not None
            kept = await play.nodes[member.node].store.get(ref.id)
            assert value_of(kept) == step(member.client, value)
        assert len(play.store) == 0


@pytest.mark.parametrize(
    ("results", "left", "retain"),
    [(Results.RETAINED, 1, True), (Results.KEPT, 1, False), (Results.UNSPECIFIED, 0, False)],
)
async def test_a_result_stays_or_is_forgotten_as_asked(results: Results, left: int, retain: bool) -> None:
    async with scene() as play:
        await play.run(TWO_NODES[1:2], "alone", results=results)
        assert left_at(play, "n2") == left  # its start was let go
        orders = [order.work for order in play.nodes["n2"].orders if isinstance(order.work, Train)]
        assert [work.retain for work in orders] == [retain]
        assert len(play.store) == 0


async def test_collected_results_are_here_until_they_are_forgotten_and_nowhere_else() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, "alone", results=Results.COLLECTED)
        assert isinstance(outcome, GroupResult)
        for client, result in trained(play).items():
            assert result.ref is not None
            assert value_of(await play.store.get(result.ref.id)) == step(client, START)
        play.assert_released(here=3)


@pytest.mark.parametrize(
    ("relay", "source"), [(RelayMode.AUTO, SourceKind.TOP_SERVER), (RelayMode.MANAGER, SourceKind.MANAGER)]
)
async def test_a_members_start_may_be_held_by_the_top_server(relay: RelayMode, source: SourceKind) -> None:
    async with scene() as play:
        play.top_server.put("other", model(3.0))
        other = Part(model(3.0).ref("other"))
        members = [TWO_NODES[0], dataclasses.replace(TWO_NODES[1], start=other)]
        await play.run(members, "alone", results=Results.COLLECTED, relay=relay)
        values = {c: value_of(await play.store.get(r.ref.id)) for c, r in trained(play).items() if r.ref}
        assert values == {0: step(0, START), 1: step(1, 3.0)}
        assert {s.kind for start in play.starts().values() for s in start.sources} == {source}
        play.assert_released(here=2)


async def test_the_start_may_be_a_mean_of_models_that_others_hold_and_is_then_the_result() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        play.nodes["n1"].store.put("hers", model(4.0))
        play.top_server.put("theirs", model(8.0))
        parts = (Part(model(4.0).ref("hers"), "n1", 3.0), Part(model(8.0).ref("theirs"), "", 1.0))
        outcome = await play.run(TWO_NODES, "alone", start=ModelRef("mean"), parts=parts)
        assert value_of(await play.store.get("mean")) == (3 * 4.0 + 8.0) / 4
        assert isinstance(outcome, GroupResult)
        assert outcome.ref == model(5.0).ref("mean")
        # up from n1, and down to every member
        assert (outcome.bytes_direct, outcome.bytes_relayed) == (0, SIZE + 3 * SIZE)
        sent_up = [order.work for order in play.nodes["n1"].orders if isinstance(order.work, SendUp)]
        assert sent_up == [SendUp("hers", earlier=True, machine=machine())]
        assert sorted(play.trained) == [0, 1, 2]
        assert left_at(play, "n1") == 1  # "hers" is hers
        assert left_at(play, "n2") == 0
        assert len(play.store) == 1


@pytest.mark.parametrize("there", [TWO_NODES[:1], []], ids=["it fails", "nobody is there"])
async def test_the_mean_that_was_to_be_the_start_is_the_result_also_if_nobody_trains(there: list[Member]) -> None:
    async with scene(Faults().fail(0) if there else None) as play:
        await play.attach(TWO_NODES)
        play.top_server.put("hers", model(4.0))
        play.top_server.put("theirs", model(8.0))
        parts = tuple(Part(model(value).ref(name), "", 1.0) for name, value in (("hers", 4.0), ("theirs", 8.0)))
        outcome = await play.run(there, "alone", start=ModelRef("mean"), parts=parts)
        assert await play.result(outcome) == 6.0
        assert set(play.skipped) == {member.client for member in there}


async def test_a_member_whose_model_is_gone_is_left_out_and_the_reason_names_it() -> None:
    async with scene() as play:
        members = await with_own_models(play, TWO_NODES, m0=5.0, m1=6.0, m2=7.0)
        play.nodes["n2"].store.clear()
        await play.run(members, "alone", start=None, results=Results.RETAINED)
        assert play.done == [0, 2]
        assert play.skipped == {1: Failure(FailureCode.NO_SUCH_MODEL, "this node has model 'own 1' no more")}


async def test_a_mean_of_which_a_part_is_gone_is_no_start() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        parts = (Part(ModelRef("hers"), "n1", 3.0),)
        outcome = await play.run(TWO_NODES, "alone", start=ModelRef("mean"), parts=parts)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NO_SUCH_MODEL
        assert "'hers' no more" in outcome.detail
        assert set(play.skipped) == {0, 1, 2}
        play.assert_released()


async def test_if_nobody_trains_the_group_fails_and_says_why() -> None:
    async with scene(Faults().fail(0).fail(1)) as play:
        outcome = await play.run(TWO_NODES[:2], "alone", results=Results.RETAINED)
        assert outcome == Failure(
            FailureCode.TASK_RAISED, "no member trained; the last reason: client 1 was told to fail"
        )
        play.assert_released()


async def test_a_result_that_cannot_be_collected_leaves_its_member_out() -> None:
    async with scene(Faults().lose_node_when_collected("n2")) as play:
        await play.run(TWO_NODES, "alone", results=Results.COLLECTED)
        assert play.done == [0, 2]
        assert play.skipped[1] is not None
        assert play.skipped[1].code is FailureCode.NODE_LOST


@pytest.mark.parametrize("program", ["alone", "parallel", "relay"])
async def test_what_members_reveal_is_here_until_it_is_forgotten_and_nowhere_else(program: str) -> None:
    async with scene() as play:
        await play.run(TWO_NODES, program, reveal=Reveal("exact"))
        updates = {client: result.update for client, result in trained(play).items()}
        starts = {c: START if program != "relay" else relayed(range(c)) for c in range(3)}
        for client, ref in updates.items():
            assert ref is not None
            shown = value_of(await play.store.get(ref.id))
            assert shown == starts[client] - step(client, starts[client])
        play.assert_released(here=3 if program == "alone" else 4)


async def test_members_that_are_not_asked_reveal_nothing() -> None:
    async with scene() as play:
        await play.run(TWO_NODES, "parallel")
        assert {result.update for result in trained(play).values()} == {None}


@pytest.mark.parametrize("results", [Results.RETAINED, Results.COLLECTED])
async def test_an_update_much_longer_than_the_others_is_not_taken(results: Results) -> None:
    rule = lambda client, w: w + (100 if client == 0 else 1 + client / 10)  # noqa: E731
    async with scene(rule=rule) as play:
        members = await with_own_models(play, hosted(n1=[0, 2], n2=[1, 3]), m0=5.0, m1=6.0, m2=7.0, m3=8.0)
        await play.run(members, "alone", start=None, results=results, most_update_ratio=5.0)
        assert play.done == [1, 2, 3]
        assert {client: why and why.code for client, why in play.skipped.items()} == {0: FailureCode.LONG_UPDATE}
        lengths = [event.kind.update_length for event in play.events if isinstance(event.kind, MemberDone)]
        assert lengths == pytest.approx([1.1, 1.2, 1.3])
        assert len(play.store) == (3 if results is Results.COLLECTED else 0)
        # their own starts, and what they retain; what was refused is forgotten
        retained = (1, 2) if results is Results.RETAINED else (0, 0)
        assert [left_at(play, node) for node in ("n1", "n2")] == [2 + retained[0], 2 + retained[1]]
