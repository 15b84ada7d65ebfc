"""What several groups of one manager have in common stays until the last of them lets it go."""

from __future__ import annotations

import asyncio

import pytest

from fedgsp.messages import FailureCode, RunGroupRequest
from fedgsp.security.tickets import Door
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_store import ModelStore
from group_manager import models
from group_manager.group import Group
from group_manager.server import GroupServicer
from group_manager.shelves import Shelf, Shelves
from tests.support.callers import ISSUER
from tests.support.fuzzing import soon
from tests.support.scene import MANAGER, Scene, hosted, scene
from tests.support.scripted import let_others_run, model

MEMBERS = hosted(n1=[0], n2=[1])


def two_shelves() -> tuple[ModelStore, Shelf, Shelf]:
    store = ModelStore()
    shelves = Shelves(store)
    return store, shelves.add(), shelves.add()


def test_a_model_stays_until_the_last_group_lets_it_go() -> None:
    store, one, other = two_shelves()
    for shelf in (one, other):
        shelf.put("start", model(1.0))
    one.release(["start"])
    assert "start" in store
    other.release(["start"])
    assert "start" not in store


def test_a_group_joins_a_model_that_another_one_has() -> None:
    store, one, other = two_shelves()
    assert not other.join("start")
    one.put("start", model(1.0))
    assert not one.join("start"), "it is its own"
    assert other.join("start")
    one.release(["start"])
    assert "start" in store
    other.release(["start"])
    assert "start" not in store


def test_a_model_that_is_awaited_by_another_group_is_not_let_go_when_it_has_come() -> None:
    store, one, other = two_shelves()
    one.expect("part")
    other.expect("part")
    store.put("part", model(1.0))  # a node uploads it
    one.release(["part"])
    assert "part" in store
    other.release(["part"])
    assert "part" not in store


def test_what_is_on_no_shelf_goes_with_the_first_release() -> None:
    store, one, _ = two_shelves()
    store.put("brought", model(1.0))
    one.release(["brought"])
    assert "brought" not in store


def test_the_result_of_a_group_that_has_ended_is_released_by_the_top_server() -> None:
    store, one, other = two_shelves()
    one.put("result", model(1.0))
    one.put("start", model(2.0))
    other.put("start", model(2.0))
    one.release(["start"])
    one.close()
    assert "result" in store
    store.release(["result"])
    other.release(["start"])
    assert len(store) == 0
    assert not one._shelves.shared


# --- groups of one manager


def request(play: Scene, group: int) -> RunGroupRequest:
    return play.request([MEMBERS[group]], "parallel", group=group, hand_on_start=True)


def groups_of(play: Scene) -> tuple[GroupServicer, list[Group]]:
    """Two groups that start from the same model of the top server."""
    servicer = GroupServicer(play.members, play.store, play.channels, MANAGER, ISSUER, Door())
    made = []
    for number in range(2):
        shelf = servicer._shelves.add()
        made.append(Group(request(play, number), play.members, shelf, play.channels, MANAGER, ISSUER, lambda _: None))
    servicer._groups.extend(made)
    return servicer, made


async def test_the_start_is_there_for_a_group_whose_neighbour_has_ended() -> None:
    async with scene() as play:
        servicer, (one, other) = groups_of(play)
        await soon(one.models.collect("start"))
        await soon(other.models.collect("start"))
        servicer._groups.remove(one)
        one.close("")
        assert "start" in play.store
        await soon(servicer.wanted("start"))
        other.close("")
        assert len(play.store) == 0


async def test_the_start_that_a_node_of_one_group_asked_for_is_there_for_the_others() -> None:
    async with scene() as play:
        servicer, (one, other) = groups_of(play)
        await soon(servicer.wanted("start"))  # the node does not say for which group it asks
        servicer._groups.remove(one)
        one.close("")
        assert "start" in play.store
        servicer._groups.remove(other)
        other.close("")
        assert len(play.store) == 0


async def test_groups_that_want_the_start_at_the_same_time_fetch_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = 0

    async def count(*arguments: object, **options: object) -> object:
        nonlocal fetches
        fetches += 1
        return await fetch(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(models, "fetch", count)
    async with scene() as play:
        _, groups = groups_of(play)
        found = await soon(asyncio.gather(*(group.models.collect("start") for group in groups)))
        assert found[0] is found[1]
        assert fetches == 1
        for group in groups:
            assert "start" in play.store
            group.close("")
        assert len(play.store) == 0


async def test_who_waits_for_the_start_gets_it_though_the_group_that_fetched_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene() as play:
        servicer, (one, other) = groups_of(play)
        reached, go_on = asyncio.Event(), asyncio.Event()
        fetch = type(one.models)._fetch

        async def slowly(self: object, model_id: str) -> None:
            reached.set()
            await go_on.wait()
            await fetch(self, model_id)  # type: ignore[arg-type]

        monkeypatch.setattr(type(one.models), "_fetch", slowly)
        reading = asyncio.create_task(servicer.wanted("start"))
        await soon(reached.wait())
        servicer._groups.remove(one)
        one.close("")
        go_on.set()
        await soon(reading)
        assert (await soon(play.store.get("start"))).digest == model(1.0).digest
        other.close("")
        await let_others_run()
        assert len(play.store) == 0


async def test_a_reader_that_is_cancelled_itself_waits_for_no_other_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as play:
        servicer, groups = groups_of(play)
        reached = asyncio.Event()

        async def never(self: object, model_id: str) -> None:
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(type(groups[0].models), "_fetch", never)
        reading = asyncio.create_task(servicer.wanted("start"))
        await soon(reached.wait())
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(reading)
        for group in groups:
            group.close("")
        await let_others_run()


async def test_when_all_groups_have_ended_the_start_is_not_known() -> None:
    async with scene() as play:
        servicer, groups = groups_of(play)
        for group in groups:
            servicer._groups.remove(group)
            group.close("")
        with pytest.raises(WeightsError) as refused:
            await soon(servicer.wanted("start"))
        assert refused.value.failure.code is FailureCode.NO_SUCH_MODEL
