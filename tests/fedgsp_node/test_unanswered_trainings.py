"""A training of which a node has no receipt leaves nothing: its client goes on as if it had not taken place."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import DataError, RunError
from fedgsp.messages import (
    Attached,
    OptimizerSettings,
    Order,
    OrderKey,
    OutgoingStep,
    Start,
    Train,
    Trained,
    TrainingSettings,
)
from fedgsp.optimizers import KEPT
from fedgsp.security.chained_parts import ChainedParts
from fedgsp_node import trainer
from fedgsp_node.kept.own_models import OwnModels
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.receipts import Receipts, receipt_log, trained_models
from tests.support.fuzzing import soon
from tests.support.kept_state import opened
from tests.support.power import Disk
from tests.support.scripted import let_others_run
from tests.support.working import HERE, ROUND, SETTINGS, Node, no_receipt, node

KEEPS = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT))
KEPT_BY_CLIENTS = ("optimizer", "head")
ATTACHED = Attached("run", "n0", "m0")


def order(settings: TrainingSettings, number: int, made: str) -> Order:
    work = Train(Start("start", HERE), made, settings)
    return Order(OrderKey(number, "train", 0, 0), 0, work)


def keeping(what: str, number: int, made: str) -> Order:
    """A training that goes on from what its client keeps."""
    if what == "optimizer":
        return order(KEEPS, number, made)
    work = Train(Start("bare", HERE, without_head=True), made, SETTINGS, outgoing=(OutgoingStep("head"),))
    return Order(OrderKey(number, "train", 0, 0), 0, work)


async def trained(n: Node, given: Order, answer: Callable[[Trained], None] = lambda _: None) -> bytes:
    """The result of a training; `answer` writes its receipt."""
    n.store.put("bare", n.clients.initial_weights(0).part(n.clients.shared))
    await n.worker.carry_out(given, n._upload, answer)
    assert isinstance(given.work, Train)
    return (await n.store.get(given.work.produces)).buffer.tobytes()


@pytest.mark.parametrize("what", KEPT_BY_CLIENTS)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_training_without_a_receipt_leaves_its_client_as_it_was(
    what: str, restarted: bool, tmp_path: Path
) -> None:
    directory = tmp_path if restarted else None
    async with node() as n:
        first = await trained(n, keeping(what, ROUND, "first"))
        expected = await trained(n, keeping(what, ROUND + 2, "last"))
    async with contextlib.AsyncExitStack() as stack:
        n = await stack.enter_async_context(node(state_dir=directory))
        assert await trained(n, keeping(what, ROUND, "first")) == first
        with pytest.raises(RunError, match=r"receipts\.jsonl"):
            await trained(n, keeping(what, ROUND + 1, "lost"), no_receipt)
        if restarted:
            n = await stack.enter_async_context(node(state_dir=directory))
        assert await trained(n, keeping(what, ROUND + 2, "last")) == expected


@pytest.mark.parametrize("what", KEPT_BY_CLIENTS)
@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize("power_cut", [False, True])
async def test_a_training_with_a_receipt_counts_although_the_node_ended_just_then(
    what: str, moves: int, power_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, move, done = Disk(monkeypatch), PersonalState._move, list[str]()

    def ends(state: PersonalState, client: int, purpose: str, other: str) -> None:
        if len(done) == moves:
            raise RunError("the node ended", "start it again")
        move(state, client, purpose, other)
        done.append(purpose)

    async with node() as n:
        for number in (ROUND, ROUND + 1):
            await trained(n, keeping(what, number, str(number)))
        expected = await trained(n, keeping(what, ROUND + 2, "last"))
    with receipt_log(tmp_path) as log:
        async with node(state_dir=tmp_path) as n:
            await trained(n, keeping(what, ROUND, str(ROUND)))
            last = keeping(what, ROUND + 1, str(ROUND + 1))
            assert last.key is not None
            receipts, key = Receipts(None, log), dataclasses.replace(last.key, run="run")

            def answer(made: Trained) -> None:
                receipts.answer(ATTACHED, key, last, made)

            monkeypatch.setattr(PersonalState, "_move", ends)
            with pytest.raises(RunError, match="the node ended"):
                await trained(n, last, answer)
    if power_cut:
        disk.cut(tmp_path)
    monkeypatch.undo()
    async with node(state_dir=tmp_path) as n:
        assert await trained(n, keeping(what, ROUND + 2, "last")) == expected


async def test_a_training_waits_until_the_one_before_it_has_its_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that was called off as it ended, in a round that has ended meanwhile."""
    async with node() as n:
        await trained(n, order(KEEPS, ROUND, "first"))
        expected = await trained(n, order(KEEPS, ROUND + 1, "next"))
    async with node() as n:
        writing, go_on, put, last = threading.Event(), threading.Event(), n.clients.personal.put, list[Trained]()

        def slow(*given: Any) -> None:
            writing.set()
            assert go_on.wait(10)
            put(*given)

        monkeypatch.setattr(n.clients.personal, "put", slow)
        one = asyncio.create_task(trained(n, order(KEEPS, ROUND, "first")))
        assert await asyncio.to_thread(writing.wait, 10)
        other = asyncio.create_task(trained(n, order(KEEPS, ROUND + 1, "next"), last.append))
        await n.slot.run(lambda _: None)  # whatever the second could do before was done
        await n.slot.run(lambda _: None)
        assert not last
        go_on.set()
        await one
        assert await other == expected


async def test_a_model_is_released_although_its_training_was_called_off_more_than_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A manager that takes a group over calls its old orders off with each of its own."""
    publishing, go_on, publish = asyncio.Event(), asyncio.Event(), trainer.publish

    async def slow(*given: Any) -> Trained:
        publishing.set()
        await go_on.wait()
        return await publish(*given)

    monkeypatch.setattr(trainer, "publish", slow)
    async with node() as n:
        running = asyncio.create_task(trained(n, order(KEEPS, ROUND, "first")))
        await publishing.wait()
        for _ in range(3):
            running.cancel()
            await let_others_run()
        assert not running.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "first" not in n.store


def test_models_are_known_from_the_receipts_of_all_parts(tmp_path: Path) -> None:
    log = ChainedParts(tmp_path / "receipts.jsonl", part_bytes=300)
    long = dataclasses.replace(SETTINGS, options={"a": "x" * 10_000})
    with log:
        receipts = Receipts(None, log)
        for number, settings in ((1, SETTINGS), (2, SETTINGS), (3, long)):
            given = order(settings, number, f"made/{number}")
            assert given.key is not None
            receipts.answer(ATTACHED, given.key, given, Trained(None, samples=1))
    assert len(list(tmp_path.iterdir())) == 3
    assert trained_models(tmp_path) == {"made/1", "made/2", "made/3"}


def test_lines_that_tell_of_no_training_name_no_model(tmp_path: Path) -> None:
    rows = ["", "{", "[]", "3", json.dumps({"answered": "trained"}), json.dumps({"answered": "trained", "asked": 3})]
    (tmp_path / "receipts.jsonl").write_text("\n".join(rows) + '\n{"answered": "trained", "makes": "torn"}')
    (tmp_path / "none").mkdir()
    assert trained_models(tmp_path) == trained_models(tmp_path / "none") == trained_models(None) == frozenset()


def test_receipts_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "receipts.jsonl")
    with pytest.raises(DataError, match=r"receipts\.jsonl cannot be read"):
        trained_models(tmp_path)


def test_a_state_directory_without_receipts_settles_nothing(tmp_path: Path) -> None:
    opened(tmp_path).prepare(0, {"head": {"w": np.zeros(1)}}, 1, "made/1")
    after = opened(tmp_path)
    after.settle_those_of(lambda: trained_models(tmp_path))
    assert after.get(0, "head") is None


@pytest.mark.parametrize("restarted", [False, True])
async def test_own_models_without_receipts_do_not_take_the_place_of_one_with_a_receipt(
    restarted: bool, tmp_path: Path
) -> None:
    """With little room on the disk, there are no receipts, but models can be written."""

    def own(number: int) -> Order:
        given = order(SETTINGS, number, f"run/{number}/0")
        assert isinstance(given.work, Train)
        return dataclasses.replace(given, work=dataclasses.replace(given.work, retain=True))

    async with contextlib.AsyncExitStack() as stack:
        n = await stack.enter_async_context(node(state_dir=tmp_path))
        await trained(n, own(1))
        for number in (2, 3):
            with pytest.raises(RunError, match=r"receipts\.jsonl"):
                await trained(n, own(number), no_receipt)
        if restarted:
            n = await stack.enter_async_context(node(state_dir=tmp_path))
        assert [f"run/{number}/0" in n.store for number in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize("steps", [0, 1])
async def test_an_own_model_with_a_receipt_counts_although_the_node_ended_just_then(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(BaseException):
        pass

    move, done, told = PersonalState._move, list[str](), list[bytes]()

    def ends(state: PersonalState, client: int, purpose: str, other: str) -> None:
        if len(done) == steps:
            raise EndedError
        move(state, client, purpose, other)
        done.append(purpose)

    def own(number: int) -> Order:
        work = Train(Start("start", HERE), f"run/{number}/0", SETTINGS, retain=True)
        return Order(OrderKey(number, "train", 0, 0), 0, work)

    with receipt_log(tmp_path) as log:
        receipts = Receipts(None, log)

        def answer(made: Trained) -> None:
            given = own(len(told) + 1)
            assert given.key is not None
            told.append(receipts.answer(ATTACHED, dataclasses.replace(given.key, run="run"), given, made))

        async with node(state_dir=tmp_path) as n:
            await trained(n, own(1), answer)
            monkeypatch.setattr(PersonalState, "_move", ends)
            with pytest.raises(EndedError):
                await trained(n, own(2), answer)
        monkeypatch.undo()
    async with node(state_dir=tmp_path) as n:
        assert [f"run/{number}/0" in n.store for number in (1, 2)] == [True, True]
    async with node(state_dir=tmp_path) as n:
        assert [f"run/{number}/0" in n.store for number in (1, 2)] == [True, True]


async def test_a_state_with_a_receipt_counts_although_the_disk_fails_for_the_own_model_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise RunError("the disk failed", "replace it")

    async with node() as n:
        await trained(n, order(KEEPS, ROUND, "first"))
        expected = await trained(n, order(KEEPS, ROUND + 1, "next"))
    async with node() as n:
        work = Train(Start("start", HERE), "first", KEEPS, retain=True)
        with monkeypatch.context() as here:
            here.setattr(OwnModels, "settle", fails)
            with pytest.raises(RunError, match="the disk failed"):
                await trained(n, Order(OrderKey(ROUND, "train", 0, 0), 0, work))
        assert "first" in n.store
        assert await trained(n, order(KEEPS, ROUND + 1, "next")) == expected


async def test_a_node_ends_although_the_disk_hangs_as_a_training_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` cancels once what is left, and waits for its end."""
    hangs, go_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        assert go_on.wait(60)

    for kept in (OwnModels, PersonalState):
        monkeypatch.setattr(kept, "settle", hang)
    async with node() as n:
        before = asyncio.all_tasks()
        work = Train(Start("start", HERE), "first", KEEPS, retain=True)
        running = asyncio.create_task(trained(n, Order(OrderKey(ROUND, "train", 0, 0), 0, work)))
        try:
            assert await asyncio.to_thread(hangs.wait, 10)
            left = asyncio.all_tasks() - before
            for task in left:
                task.cancel()
            await soon(asyncio.wait(left))
            assert running.cancelled()
        finally:
            go_on.set()
