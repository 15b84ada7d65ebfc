"""A result that was published once is handed out again, and with it goes what its own training has left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import Attached, Order, OrderKey, OutgoingStep, Start, Train, Trained
from fedgsp_node.kept.personal_state import HEAD, Arrays, PersonalState
from fedgsp_node.receipts import Receipts, receipt_log
from tests.support.outgoing_steps import DRAWS
from tests.support.working import HERE, ROUND, SETTINGS, Node, no_receipt, node

OWN_HEAD = dataclasses.replace(SETTINGS, algorithm="own-head")
NOISE = (OutgoingStep("noise", {"scale": "0.5"}),)


@pytest.fixture(autouse=True)
def _draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "draws").touch()
    monkeypatch.setenv(DRAWS, str(tmp_path / "draws"))


def order(made: str, start: str = "start", **changes: Any) -> Order:
    work = dataclasses.replace(Train(Start(start, HERE), made, OWN_HEAD, outgoing=NOISE), **changes)
    return Order(OrderKey(ROUND, "train", 0, 0), 0, work)


async def trained(n: Node, given: Order, answer: Callable[[Trained], None] = lambda _: None) -> bytes:
    await n.worker.carry_out(given, n._upload, answer)
    assert isinstance(given.work, Train)
    return (await n.store.get(given.work.produces)).digest


def head(n: Node) -> Arrays:
    kept = n.clients.personal.get(0, HEAD)
    assert kept is not None
    return kept[1]


def same(some: Arrays, other: Arrays) -> bool:
    return some.keys() == other.keys() and all(np.array_equal(some[name], other[name]) for name in some)


async def test_what_an_unanswered_training_has_left_does_not_go_with_the_result_of_another(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        n.store.put("other", n.clients.initial_weights(7))
        await trained(n, order("a"))
        expected = head(n)
        with pytest.raises(RunError):
            await trained(n, order("lost", "other", outgoing=()), no_receipt)
        await trained(n, order("b"))
        assert same(head(n), expected)


async def test_a_training_aside_leaves_what_another_one_has_prepared_for_the_receipt_of_its_second_order(
    tmp_path: Path,
) -> None:
    async with node(state_dir=tmp_path / "alone") as n:
        await trained(n, order("a"))
        expected = head(n)
    async with node(state_dir=tmp_path / "state") as n:
        n.store.put("other", n.clients.initial_weights(7))
        with pytest.raises(RunError):
            await trained(n, order("a"), no_receipt)
        await trained(n, order("prior", "other", aside=True))
        assert n.clients.personal.get(0, HEAD) is None
        await trained(n, order("b"))
        assert same(head(n), expected)


async def test_of_two_trainings_at_once_the_published_one_leaves_its_head(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path / "alone") as n:
        await trained(n, order("a"))
        expected = head(n)
    async with node(state_dir=tmp_path / "state") as n:
        n.store.put("other", n.clients.initial_weights(7))
        one, other = await asyncio.gather(trained(n, order("a")), trained(n, order("b", "other")))
        assert one == other
        assert same(head(n), expected)


async def test_a_training_prepares_nothing_before_another_one_of_the_client_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would give up what the other one has left, although that has a receipt."""
    kept, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    settle = PersonalState.settle

    def slow(*given: Any) -> None:
        loop.call_soon_threadsafe(kept.set)
        assert go_on.wait(10)
        settle(*given)

    async with node(state_dir=tmp_path / "state") as n:
        n.store.put("other", n.clients.initial_weights(7))
        monkeypatch.setattr(PersonalState, "settle", slow)
        first = asyncio.create_task(trained(n, order("a", outgoing=())))
        await kept.wait()
        second = asyncio.create_task(trained(n, order("b", "other", outgoing=()), no_receipt))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(second), 0.5)
        go_on.set()
        await first
        with pytest.raises(RunError):
            await second
        left = head(n)
    async with node(state_dir=tmp_path / "alone") as n:
        await trained(n, order("x", outgoing=()))
        assert same(head(n), left)


async def test_a_result_that_was_handed_out_as_the_node_ended_counts_by_the_receipt_of_its_second_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise RunError("the node ended", "start it again")

    state = tmp_path / "state"
    state.mkdir()
    with receipt_log(state) as log:
        receipts, again = Receipts(None, log), order("b")
        assert again.key is not None
        key = dataclasses.replace(again.key, run="run")
        async with node(state_dir=state) as n:
            with pytest.raises(RunError, match="receipts"):
                await trained(n, order("a"), no_receipt)
        async with node(state_dir=state) as n:
            assert n.clients.personal.get(0, HEAD) is None

            def answer(made: Trained) -> None:
                receipts.answer(Attached("run", "n0", "m0"), key, again, made)

            with monkeypatch.context() as here:
                here.setattr(PersonalState, "settle", ended)
                with pytest.raises(RunError, match="the node ended"):
                    await trained(n, again, answer)
    async with node(state_dir=state) as n:
        after = head(n)
    async with node(state_dir=tmp_path / "alone") as n:
        await trained(n, order("a"))
        assert same(head(n), after)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_result_that_lost_several_receipts_still_leaves_its_head(restarted: bool, tmp_path: Path) -> None:
    async with node(state_dir=tmp_path / "alone") as n:
        await trained(n, order("a"))
        expected = head(n)
    async with contextlib.AsyncExitStack() as stack:
        n = await stack.enter_async_context(node(state_dir=tmp_path / "state"))
        for made in ("a", "b", "c"):
            with pytest.raises(RunError, match="receipts"):
                await trained(n, order(made), no_receipt)
            assert n.clients.personal.get(0, HEAD) is None
            if restarted:
                n = await stack.enter_async_context(node(state_dir=tmp_path / "state"))
        await trained(n, order("d"))
        assert same(head(n), expected)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_result_that_is_ordered_once_more_under_its_first_name_leaves_its_head(
    restarted: bool, tmp_path: Path
) -> None:
    """A top server that was killed plays the round again, and counts its tries anew."""
    async with node(state_dir=tmp_path / "alone") as n:
        await trained(n, order("a"))
        expected = head(n)
    async with contextlib.AsyncExitStack() as stack:
        n = await stack.enter_async_context(node(state_dir=tmp_path / "state"))
        for made in ("a", "b"):
            with pytest.raises(RunError, match="receipts"):
                await trained(n, order(made), no_receipt)
        if restarted:
            n = await stack.enter_async_context(node(state_dir=tmp_path / "state"))
        await trained(n, order("a"))
        assert same(head(n), expected)
