"""Orders carried out by one node: fetch, train, keep, report."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import numpy as np
import pytest

from fedgsp.messages import (
    Cancel,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    Initialise,
    Release,
    SendUp,
    Start,
    Train,
    Trained,
    Work,
)
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs
from tests.support.scripted import let_others_run
from tests.support.working import HERE, ROUND, SETTINGS, node, training, why_not


class Gate:
    """Called in training: says that it has begun, and lets it go on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self.open.wait(10)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 10)


# --- training


async def test_a_training_order_keeps_its_result_and_says_what_it_took() -> None:
    async with node() as n:
        result = await n.do(training("start", "end"), client=2)
        kept = await n.store.get("end")
        learned = n.clients.train(2, await n.store.get("start"), SETTINGS, ROUND, Control())
        expected, loss = learned.after, learned.loss
        assert isinstance(result, Trained)
        assert np.array_equal(kept.buffer, expected.buffer)
        assert result.ref == kept.ref("end")
        assert (result.samples, result.loss, result.source, result.bytes) == (12, loss, HERE[0], 0)
        assert result.seconds > 0


async def test_a_training_order_may_ask_how_accurate_the_trained_model_is_on_its_samples() -> None:
    async with node() as n:
        result = await n.do(dataclasses.replace(training("start", "end"), measure_accuracy=True), client=2)
        judged = n.clients.evaluate(2, await n.store.get("end"), Control(), part="train")
        guess = 1 / n.clients.task.num_classes
        assert result.train_accuracy == max(judged.correct / judged.samples, guess)
        assert (await n.do(training("start", "other"), client=2)).train_accuracy == 0


async def test_a_training_accuracy_is_at_least_that_of_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blobs, "correct", lambda *_: 0)
    async with node() as n:
        result = await n.do(dataclasses.replace(training("start", "end"), measure_accuracy=True))
        assert result.train_accuracy == 1 / n.clients.task.num_classes


async def test_a_chain_declared_at_once_drives_itself() -> None:
    async with node() as n:
        orders = [(2, "c", "d"), (1, "b", "c"), (0, "start", "b")]  # the last hop comes first
        await asyncio.gather(*(n.do(training(start, end), client) for client, start, end in orders))
        weights = await n.store.get("start")
        for client in (0, 1, 2):
            weights = n.clients.train(client, weights, SETTINGS, ROUND, Control()).after
        assert np.array_equal((await n.store.get("d")).buffer, weights.buffer)


async def test_the_slot_is_free_while_an_order_waits_for_its_weights() -> None:
    async with node() as n:
        waiting = asyncio.create_task(n.do(training("promised", "late")))
        await let_others_run()
        assert isinstance(await n.do(training("start", "end")), Trained)
        assert not waiting.done()
        n.store.put("promised", await n.store.get("start"))
        assert isinstance(await waiting, Trained)


def _raise() -> None:
    raise ValueError("the camera broke")


@pytest.mark.parametrize(
    ("work", "client", "code"),
    [
        (training("start", "end"), 0, FailureCode.TASK_RAISED),
        (training("start", "end"), 9, FailureCode.UNKNOWN_CLIENT),
        (Train(None, "end", SETTINGS), 0, FailureCode.BAD_ORDER),
        (Train(Start("start", HERE), "end", None), 0, FailureCode.BAD_ORDER),
        (Train(Start("start", ()), "end", SETTINGS), 0, FailureCode.NO_SUCH_MODEL),
    ],
)
async def test_an_order_that_fails_breaks_its_promise_with_the_reason(
    work: Train, client: int, code: FailureCode
) -> None:
    async with node(Blobs(on_loss=_raise)) as n:
        reader = asyncio.create_task(n.store.get("end"))
        failure = await why_not(n.do(work, client))
        assert failure.code is code
        assert await why_not(reader) == failure


async def test_a_failing_hop_fails_those_behind_it() -> None:
    async with node() as n:
        behind = asyncio.create_task(n.do(training("b", "c"), client=1))
        failure = await why_not(n.do(Train(Start("start", HERE), "b", None)))
        assert await why_not(behind) == failure


async def test_a_cancelled_training_stops_at_the_next_batch_and_breaks_its_promise() -> None:
    gate = Gate()
    async with node(Blobs(on_loss=gate)) as n:
        running = asyncio.create_task(n.do(training("start", "end")))
        await gate.wait()
        running.cancel()
        await let_others_run()
        assert not running.done()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert n.slot.mark == 1  # of two batches
        assert (await why_not(n.store.get("end"))).code is FailureCode.CANCELLED


async def test_an_order_cancelled_while_it_waits_breaks_its_promise() -> None:
    async with node() as n:
        running = asyncio.create_task(n.do(training("promised", "end")))
        await let_others_run()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await why_not(n.store.get("end"))).code is FailureCode.CANCELLED


# --- everything else


async def test_evaluating_counts_on_the_clients_test_part() -> None:
    async with node() as n:
        result = await n.do(Evaluate(Start("start", HERE)), client=1)
        expected = n.clients.evaluate(1, await n.store.get("start"), Control())
        assert isinstance(result, Evaluated)
        assert (result.correct, result.samples, result.loss_sum) == (expected.correct, 5, expected.loss_sum)
        assert result.source == HERE[0]


async def test_describing_reports_the_histogram() -> None:
    async with node() as n:
        assert await n.do(Describe(), client=3) == Described(n.clients.class_counts(3))


async def test_fresh_weights_are_kept() -> None:
    async with node() as n:
        result = await n.do(Initialise("fresh", 77))
        assert isinstance(result, Trained)
        assert result.ref == n.clients.initial_weights(77).ref("fresh")
        assert "fresh" in n.store


async def test_a_model_is_sent_up_once_it_is_there() -> None:
    async with node() as n:
        sending = asyncio.create_task(n.do(SendUp("end")))
        await let_others_run()
        assert n.uploads == {}
        await n.do(training("start", "end"))
        assert await sending is None
        assert n.uploads == {"end": await n.store.get("end")}


async def test_a_broken_promise_cannot_be_sent_up() -> None:
    async with node() as n:
        n.store.fail("end", Failure(FailureCode.TASK_RAISED, "oops"))
        assert (await why_not(n.do(SendUp("end")))).code is FailureCode.TASK_RAISED


async def test_released_models_are_forgotten_and_unknown_ones_do_no_harm() -> None:
    async with node() as n:
        assert await n.do(Release(("start", "never heard of"))) is None
        assert len(n.store) == 0


@pytest.mark.parametrize("work", [None, Cancel(), Evaluate(None)])
async def test_orders_that_make_no_sense_are_refused(work: Work | None) -> None:
    async with node() as n:
        assert (await why_not(n.do(work))).code is FailureCode.BAD_ORDER


@pytest.mark.parametrize("work", [Describe(), Evaluate(Start("start", HERE)), training("start", "end")])
async def test_strangers_are_refused_by_every_order(work: Work) -> None:
    async with node() as n:
        assert await why_not(n.do(work, client=9)) == Failure(
            FailureCode.UNKNOWN_CLIENT, "client 9 is not hosted here"
        )


# --- heads that stay
