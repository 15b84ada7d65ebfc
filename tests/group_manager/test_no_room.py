"""A manager without memory or disk for a model: the group ends with that reason, and no member is blamed."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.messages import (
    Failed,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    Initialise,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    Part,
    PartLost,
    RelayMode,
    Release,
    Results,
    Reveal,
    Source,
    SourceKind,
    TensorSpec,
    Train,
    Trained,
)
from fedgsp.tensors.memory import room
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc
from fedgsp_node.connections import attachment
from fedgsp_node.outgoing import steps
from group_manager import models
from group_manager.group import Group
from group_manager.members import Members
from group_manager.shelves import Shelves
from tests.support.callers import ISSUER
from tests.support.real_manager import CLIENTS, SETTINGS, Manager, manager, node, parrot, request
from tests.support.scripted import let_others_run
from top_server.groups.watch import OFFENCES


async def play(m: Manager, program: str, **changes: Any) -> list[GroupEvent]:
    stub = group_pb2_grpc.GroupServiceStub(m.channel)
    asked = request(program, start_address=m.top_address, **{"tensors": CLIENTS.tensors, **changes})
    return [wire.decode(GroupEvent, event) async for event in stub.RunGroup(wire.encode(asked))]


def waiting(begun: asyncio.Event) -> Any:
    """A program that only waits."""

    async def play(group: Group) -> None:
        work = Train(None, "run/1/0/relay/0.0", SETTINGS)
        group.orders.submit(group.request.members[0], group.orders.key("train", 0), work)
        begun.set()
        await asyncio.Event().wait()

    return play


def full(_: int) -> np.ndarray:
    raise MemoryError


PLAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "relay": ("relay", {}),
    "relay, measured": ("relay", {"most_update_ratio": 3.0}),
    "parallel": ("parallel", {}),
    "alone": ("alone", {"results": Results.COLLECTED}),
    "collect": ("collect", {"results": Results.COLLECTED}),
}


@pytest.mark.parametrize("name", PLAYS)
async def test_a_manager_that_is_full_ends_the_group_and_blames_no_member(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    program, changes = PLAYS[name]
    async with manager(full) as m, node(m, "n0") as first, node(m, "n1") as second:
        if program == "collect":
            members = []
            for client, (hosted, store) in enumerate((("n0", first), ("n1", second))):
                own = CLIENTS.initial_weights(client + 1)
                store.put(f"own {client}", own)
                members.append(Member(client, hosted, "", 5, Part(own.ref(f"own {client}"), hosted, 1.0, client), 1.0))
            changes = {**changes, "members": tuple(members)}
        *events, last = await play(m, program, **changes)
    assert isinstance(last.kind, Failure)
    assert "for which there is no memory" in last.kind.detail
    skipped = [event.kind.failure for event in events if isinstance(event.kind, MemberSkipped)]
    assert not {failure and failure.code for failure in skipped} & {*OFFENCES}
    if program != "parallel":  # where small models come unasked, each member finds out for itself
        assert last.kind.detail.startswith("the group manager is full: model ")
        assert skipped == []  # nobody trains again in vain


@pytest.mark.parametrize("program", ["relay", "parallel", "evaluate"])
async def test_a_start_for_which_there_is_no_room_ends_the_group(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "growing_room", full)
    async with manager() as m, node(m, "n0"), node(m, "n1"):
        *_, last = await play(m, program, relay=RelayMode.MANAGER)
    assert isinstance(last.kind, Failure)
    why = "model 'start' has 472 bytes, for which there is no memory"
    assert last.kind.detail == f"the group manager is full: {why}; make room on its machine"


async def test_an_upload_that_finds_room_at_the_second_try_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    tries = 0

    def full_at_first(size: int) -> np.ndarray:
        nonlocal tries
        tries += 1
        return room(size) if tries > 1 else full(size)

    async with manager(full_at_first) as m, node(m, "n0"), node(m, "n1"):
        *events, last = await play(m, "relay")
    assert isinstance(last.kind, GroupResult)
    assert sorted(event.kind.client for event in events if isinstance(event.kind, MemberDone)) == [0, 1, 2]


async def test_a_size_that_only_its_sender_tells_makes_no_manager_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors of what is revealed are not known here. So its sender is at fault, and the others go on."""
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)

    def small(size: int) -> np.ndarray:
        return full(size) if size > CLIENTS.initial_weights(0).buffer.nbytes else room(size)

    long = np.zeros(1 << 18, np.float32)
    spec = TensorSpec("update", "float32", long.shape)
    async with manager(small) as m, node(m, "n0"), node(m, "n1"):
        monkeypatch.setattr(steps, "reveal", lambda *_: Weights.of({"update": long}, (spec,)))
        *events, last = await play(m, "parallel", reveal=Reveal("exact"))
    assert isinstance(last.kind, GroupResult)
    done = [event.kind for event in events if isinstance(event.kind, MemberDone)]
    assert [one.result.update for one in done if isinstance(one.result, Trained)] == [None] * 3


async def test_a_start_of_parts_for_which_there_is_no_room_costs_no_client_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    async with manager(full) as m, node(m, "n0") as first, node(m, "n1") as second:
        parts = []
        for number, (name, store) in enumerate((("n0", first), ("n1", second))):
            own = CLIENTS.initial_weights(number + 1)
            store.put(f"own {number}", own)
            parts.append(Part(own.ref(f"own {number}"), name, 1.0, number))
        *events, last = await play(m, "parallel", start=ModelRef("mean"), parts=tuple(parts))
    assert isinstance(last.kind, Failure)
    assert last.kind.detail.startswith("the group manager is full: model 'own 0'")
    assert not [event for event in events if isinstance(event.kind, PartLost | MemberSkipped)]


async def test_a_group_does_not_end_for_a_base_for_which_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "growing_room", full)
    ordered = asyncio.Event()
    monkeypatch.setattr(Group, "_play", waiting(ordered))
    async with manager() as m, parrot(m, "n0", []), parrot(m, "n1", []):
        asked = request("relay", start_address=m.top_address, tensors=CLIENTS.tensors)
        running = group_pb2_grpc.GroupServiceStub(m.channel).RunGroup(wire.encode(asked))
        await ordered.wait()
        assert await m.groups.start_of("run/1/0/relay/0.0") is None
        assert not m.groups._groups[0].models.full.done()
        monkeypatch.setattr(models, "growing_room", room)  # there is room by the time a member needs it
        await m.groups.wanted("start")
        assert "start" in m.store
        assert not m.groups._groups[0].models.full.done()
        running.cancel()


async def test_a_second_try_to_get_a_model_does_not_hide_that_there_was_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another member asks after the first try, and before the first member hears of it."""
    begun, tried, rooms = asyncio.Event(), asyncio.Event(), iter([full])
    monkeypatch.setattr(models, "growing_room", lambda size: next(rooms, room)(size))
    monkeypatch.setattr(Group, "_play", waiting(begun))
    async with manager() as m, parrot(m, "n0", []), parrot(m, "n1", []):
        asked = request("relay", start_address=m.top_address, tensors=CLIENTS.tensors)
        running = group_pb2_grpc.GroupServiceStub(m.channel).RunGroup(wire.encode(asked))
        await begun.wait()
        (group,) = m.groups._groups
        monkeypatch.setattr(group.orders, "came", lambda *_: tried.set())

        async def another() -> None:
            await tried.wait()
            await m.groups.wanted("start")

        await asyncio.gather(another(), m.groups.wanted("start"), return_exceptions=True)  # the group ends
        assert group.models.full.done()
        running.cancel()


async def test_a_program_takes_no_step_after_its_group_was_closed() -> None:
    """Its member fails in the same turn of the event loop in which the top server hangs up."""
    members = Members()
    session, _, following = [await members.attach(node) for node in ("n0", "n1", "n2")]  # two are asked at first
    async with Channels() as channels:
        manager = Source(SourceKind.MANAGER, "m0", "x")
        shelf = Shelves(ModelStore()).add()
        asked = request("initialise")
        asked = dataclasses.replace(asked, members=(*asked.members, Member(3, "n2", "", 1)))
        group = Group(asked, members, shelf, channels, manager, ISSUER, lambda _: None)
        running = asyncio.create_task(group.play())
        await let_others_run()
        (key,) = session.pending
        members.report(session, Failed(key, Failure(FailureCode.TASK_RAISED, "no")))
        await asyncio.sleep(0)
        running.cancel()
        group.close("")
        await asyncio.gather(running, return_exceptions=True)
        assert following.outbox.empty()
        assert not session.pending
        told = [session.outbox.get_nowait() for _ in range(session.outbox.qsize())]
        assert [type(order.work) for order in told if order is not None] == [Initialise, Release]


async def test_an_upload_must_have_the_tensors_of_the_run_where_they_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a header of thousands of tensors would keep the manager busy, again and again."""
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    others = (TensorSpec("other", "float32", (118,)),)
    made = CLIENTS.initial_weights(0)
    async with manager() as m, node(m, "n0"), node(m, "n1") as liar:
        put = liar.put
        monkeypatch.setattr(liar, "put", lambda key, _: put(key, Weights(others, made.buffer)))
        *events, last = await play(m, "relay")
    assert isinstance(last.kind, GroupResult)
    skipped = {event.kind.client: event.kind.failure for event in events if isinstance(event.kind, MemberSkipped)}
    assert {client: failure and failure.code for client, failure in skipped.items()} == {1: FailureCode.BAD_STREAM}
    assert "has tensor 'other' float32[118] where tensor" in str(skipped[1])
