"""What a group leaves behind when it is closed, whatever its nodes do."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from fedgsp.messages import (
    Cancel,
    GroupEvent,
    Initialise,
    ModelRef,
    Part,
    RelayMode,
    Release,
    SourceKind,
    Train,
    TrainingSettings,
)
from group_manager.group import Group
from group_manager.shelves import Shelves
from tests.support.callers import ISSUER
from tests.support.faults import Faults
from tests.support.scene import MANAGER, Scene, hosted, scene
from tests.support.scripted import let_others_run, model

MEMBERS = hosted(n1=[0])


def group_of(play: Scene, events: list[GroupEvent], **changes: Any) -> Group:
    request = dataclasses.replace(play.request(MEMBERS, "relay"), **changes)
    return Group(request, play.members, Shelves(play.store).add(), play.channels, MANAGER, ISSUER, events.append)


async def test_a_node_that_answers_nothing_holds_nothing_up() -> None:
    async with scene() as play:
        silent = await play.members.attach("n1")
        group = group_of(play, [])
        pending = group.orders.submit(MEMBERS[0], group.orders.key("initialise", 0), Initialise("fresh", 1))
        assert group.ledger.provides("fresh")
        asking = asyncio.create_task(group.models.wanted("fresh"))
        await let_others_run()
        group.close("")
        await let_others_run()
        assert asking.cancelled()
        orders = []
        while not silent.outbox.empty():
            orders.append(silent.outbox.get_nowait())
        sent = [(order.key.task, order.work) for order in orders if order and order.key]
        assert (pending.key.task, Cancel()) in sent
        assert ("send-up", Cancel()) in sent
        assert sent[-1] == ("release", Release(("fresh",)))
        assert not silent.pending
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("carry")]


@pytest.mark.parametrize(
    ("hand_on", "relay", "own", "source"),
    [
        (False, RelayMode.AUTO, False, SourceKind.TOP_SERVER),
        (True, RelayMode.AUTO, False, SourceKind.MANAGER),
        (False, RelayMode.MANAGER, False, SourceKind.MANAGER),
        (True, RelayMode.AUTO, True, SourceKind.TOP_SERVER),  # nobody else starts from it
    ],
)
async def test_members_get_the_start_where_the_request_says(
    hand_on: bool, relay: RelayMode, own: bool, source: SourceKind
) -> None:
    async with scene() as play:
        start = Part(ModelRef("start"), "", 1.0)
        member = dataclasses.replace(MEMBERS[0], start=start) if own else MEMBERS[0]
        changes = {"start": start.ref, "members": (member,), "hand_on_start": hand_on, "relay": relay}
        found = group_of(play, [], **changes).given_start(member, keep=False)
        assert [one.kind for one in found.sources] == [source]


async def test_only_the_result_is_kept_here() -> None:
    async with scene() as play:
        await play.attach(MEMBERS)
        group = group_of(play, [])
        for model_id in ("one", "result"):
            key = group.orders.key("initialise", len(model_id))
            await group.orders.submit(MEMBERS[0], key, Initialise(model_id, 1)).outcome
            await group.models.collect(model_id)
        assert len(play.store) == 2
        group.close("result")
        assert "result" in play.store
        assert "one" not in play.store


async def test_a_model_that_is_here_already_is_not_asked_for() -> None:
    async with scene() as play:
        silent = await play.members.attach("n1")
        play.store.put("here", model(2.0))
        assert await group_of(play, []).models.collect("here") is await play.store.get("here")
        assert silent.outbox.empty()


async def test_what_is_brought_may_come_until_its_maker_has_reported() -> None:
    async with scene(Faults().hold(0, until=1)) as play:
        await play.attach(MEMBERS)
        group = group_of(play, [])
        training = TrainingSettings("sgd", 1, 1, 0.1, 0)
        order = Train(group.given_start(MEMBERS[0], keep=False), "made", training, bring=True)
        pending = group.orders.submit(MEMBERS[0], group.orders.key("train", 0), order)
        await play.holding.wait()
        assert group.ledger.expects("made")
        assert not group.ledger.expects("another")
        play.answered[1].set()
        await pending.outcome
        assert not group.ledger.expects("made")
        assert "made" in play.store
        group.close("")
        assert len(play.store) == 0
