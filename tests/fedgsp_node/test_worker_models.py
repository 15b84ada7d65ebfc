"""What a worker keeps for its clients and shows of them: heads, own models, updates."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import (
    Evaluate,
    Failure,
    FailureCode,
    OptimizerSettings,
    Order,
    OrderKey,
    OutgoingStep,
    Release,
    Reveal,
    SendUp,
    Start,
    Train,
    Trained,
    Work,
)
from fedgsp.optimizers import KEPT
from fedgsp.seeds import derive
from fedgsp.tensors.encoding import rounded
from fedgsp.tensors.updates import update_of
from fedgsp.tensors.weights import Weights, WeightsError, without_head
from fedgsp_node.clients import Clients
from fedgsp_node.kept.personal_state import HEAD, OPTIMIZER
from fedgsp_node.trainer import Trainer
from fedgsp_node.training.control import Control
from fedgsp_node.updates import reveal
from tests.support.blobs_task import Blobs
from tests.support.working import HERE, OWN, ROUND, SETTINGS, Node, no_receipt, node, training, why_not

STEP_HEAD, STEP_ROUNDING = OutgoingStep("head"), OutgoingStep("rounding")


def personal(start: str, produces: str, **changes: Any) -> Train:
    return Train(Start(start, HERE, without_head=True), produces, SETTINGS, outgoing=(STEP_HEAD,), **changes)


def bare(n: Node, model_id: str = "bare") -> str:
    """A model without a head, in the node's store."""
    n.store.put(model_id, n.clients.initial_weights(9).part(n.clients.shared))
    return model_id


def head_of(n: Node, client: int) -> dict[str, np.ndarray]:
    kept = n.clients.personal.get(client, HEAD)
    assert kept is not None
    return {name: array.copy() for name, array in kept[1].items()}


async def test_a_head_stays_with_its_client_and_is_what_the_next_training_goes_on_from() -> None:
    async with node() as n:
        start = bare(n)
        result = await n.do(personal(start, "a"), client=0)
        assert isinstance(result, Trained)
        assert result.ref == (await n.store.get("a")).ref("a")
        first = head_of(n, 0)
        await n.do(personal(start, "b"), client=1)
        await n.do(personal(start, "c"), client=0, round_number=ROUND + 1)

        plain = Clients(Blobs(), None)
        head = plain.initial_weights(derive(SETTINGS.seed, "initial-weights")).arrays
        shared = (await n.store.get(start)).arrays
        for produces, own, number in [("a", head, ROUND), ("c", first, ROUND + 1)]:
            whole = Weights.of({**head, **own, **shared}, plain.tensors)
            after = plain.train(0, whole, SETTINGS, number, Control()).after
            assert np.array_equal((await n.store.get(produces)).buffer, after.part(without_head(plain.tensors)).buffer)
            if produces == "a":
                assert all(np.array_equal(array, after.arrays[name]) for name, array in first.items())


async def test_a_client_is_evaluated_with_its_own_head_and_before_it_has_one_with_that_of_the_runs_seed() -> None:
    async with node() as n:
        start = Start(bare(n), HERE, without_head=True)
        before = await n.do(Evaluate(start, settings=SETTINGS))
        fresh = n.clients.initial_weights(derive(3, "initial-weights"))
        whole = Weights.of({**fresh.arrays, **(await n.store.get("bare")).arrays}, n.clients.tensors)
        assert before.loss_sum == n.clients.evaluate(0, whole, Control()).loss_sum
        await n.do(personal("bare", "a"))
        after = await n.do(Evaluate(start, settings=SETTINGS))
        own = n.clients.personal.get(0, HEAD)
        assert own is not None
        whole = Weights.of({**whole.arrays, **own[1]}, n.clients.tensors)
        assert after.loss_sum == n.clients.evaluate(0, whole, Control()).loss_sum != before.loss_sum


async def test_a_restarted_node_goes_on_with_the_heads_on_its_disk(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        await n.do(personal(bare(n), "a"))
        kept, a = head_of(n, 0), await n.store.get("a")
    async with node(state_dir=tmp_path) as again:
        assert all(np.array_equal(array, kept[name]) for name, array in head_of(again, 0).items())
        again.store.put("a", a)
        await again.do(personal("a", "b"), round_number=ROUND + 1)
        whole = Weights.of({**a.arrays, **kept}, again.clients.tensors)
        after = Clients(Blobs(), None).train(0, whole, SETTINGS, ROUND + 1, Control()).after
        assert np.array_equal((await again.store.get("b")).buffer, after.part(again.clients.shared).buffer)


async def test_a_head_that_cannot_be_kept_fails_the_order(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        (tmp_path / "state").rmdir()
        failure = await why_not(n.do(personal(bare(n), "a")))
        assert "No such file or directory; make the folder that it belongs in" in failure.detail
        assert (await why_not(n.store.get("a"))) == failure


# --- what a client shows of its update


@pytest.mark.parametrize("view", ["exact", "layer:0", "sketch:16"])
@pytest.mark.parametrize("without", [False, True])
async def test_an_update_is_kept_beside_the_result_and_named_in_the_report(view: str, without: bool) -> None:
    async with node() as n:
        result = await n.do(Train(Start("start", HERE), "end", SETTINGS, Reveal(view, without)))
        shown, before, after = await asyncio.gather(*map(n.store.get, ("end.update", "start", "end")))
        assert result.update == shown.ref("end.update")
        if without:
            before, after = (weights.part(n.clients.shared) for weights in (before, after))
        expected = reveal(view, before, after, SETTINGS.learning_rate, derive(SETTINGS.seed, "reveal"))
        assert np.array_equal(shown.buffer, expected.buffer)


async def test_the_update_of_a_client_with_a_head_of_its_own_is_of_the_whole_model() -> None:
    async with node() as n:
        result = await n.do(personal(bare(n), "end", reveal=Reveal("exact")))
        floats = sum(
            array.size for name, array in n.clients.initial_weights(0).arrays.items() if "running" not in name
        )
        assert (await n.store.get("end.update")).arrays["update"].size == floats - 1  # of batch norm's counter
        assert result.update is not None
        assert (await n.store.get("end")).tensors == n.clients.shared


async def test_a_view_that_does_not_exist_fails_the_order_and_breaks_its_promise() -> None:
    async with node() as n:
        failure = await why_not(n.do(Train(Start("start", HERE), "end", SETTINGS, Reveal("layer:nine"))))
        assert failure.code is FailureCode.BAD_ORDER
        assert "no layer 'nine'" in failure.detail
        assert await why_not(n.store.get("end")) == failure


# --- models of clients that train alone


async def test_a_retained_result_is_the_clients_own_and_found_again_after_a_restart(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        await n.do(Train(Start("start", HERE), "r1", SETTINGS, retain=True))
        kept = await n.store.get("r1")
        # a start of its own moves no bytes
        result = await n.do(Train(Start("r1", OWN), "r2", SETTINGS, retain=True))
        assert (result.source, result.bytes) == (OWN[0], 0)
        newest = await n.store.get("r2")
    async with node(state_dir=tmp_path) as again:
        assert np.array_equal((await again.store.get("r2")).buffer, newest.buffer)
        # what it started from too: whoever ordered the training may not have heard of its result
        assert np.array_equal((await again.store.get("r1")).buffer, kept.buffer)
        assert not np.array_equal(kept.buffer, newest.buffer)


async def test_a_client_that_is_to_forget_its_own_model_keeps_nothing_of_it_and_others_keep_theirs() -> None:
    async with node() as n:
        await n.do(Train(Start("start", HERE), "r1", SETTINGS, retain=True))
        await n.do(Train(Start("r1", OWN), "r2", SETTINGS, retain=True))
        await n.do(Train(Start("start", HERE), "other", SETTINGS, retain=True), client=1)
        await n.worker.carry_out(Order(OrderKey(ROUND, "forget", 0, 0), 0, Release(("r2",), own=True)), n._upload)
        assert [model_id in n.store for model_id in ("start", "r1", "r2", "other")] == [True, False, False, True]
        await n.do(Train(Start("start", HERE), "s1", SETTINGS, retain=True))
        assert "s1" in n.store


@pytest.mark.parametrize(
    "work", [Train(Start("r1", OWN), "r2", SETTINGS), Evaluate(Start("r1", OWN)), SendUp("r1", True)]
)
async def test_a_model_of_an_earlier_round_is_there_or_lost_and_never_waited_for(work: Work) -> None:
    async with node() as n:
        failure = await why_not(n.do(work))
        assert failure == Failure(FailureCode.NO_SUCH_MODEL, "this node has model 'r1' no more")


async def test_another_run_is_not_confused_with_the_last_one(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        await n.do(Train(Start("start", HERE), "r1", SETTINGS, retain=True))
        await n.do(personal(bare(n), "a"))
        n.store.clear()
        n.worker.open("next run")
        assert len(n.store) == 0
        assert n.clients.personal.get(0, HEAD) is None
        n.worker.open("run")
        assert "r1" in n.store
        assert n.clients.personal.get(0, HEAD) is not None


# --- judging


async def test_evaluating_may_be_of_the_training_part_and_say_how_far_another_model_is() -> None:
    async with node() as n:
        await n.do(training("start", "end"), client=2)
        result = await n.do(Evaluate(Start("start", HERE), training_part=True, compared_with="end"), client=2)
        assert result.samples == 12
        before, after = (await n.store.get("start")).arrays, (await n.store.get("end")).arrays
        floats = [spec.name for spec in n.clients.tensors if spec.trainable]  # no buffers of batch norm
        apart = sum(float(((before[name].astype(float) - after[name].astype(float)) ** 2).sum()) for name in floats)
        assert result.squared_distance == pytest.approx(apart, rel=1e-12)
        assert apart > 0


async def test_a_model_to_compare_with_that_is_not_there_is_named() -> None:
    async with node() as n:
        failure = await why_not(n.do(Evaluate(Start("start", HERE), compared_with="prior")))
        assert failure == Failure(FailureCode.NO_SUCH_MODEL, "client 0 has no model 'prior' to compare with")


@pytest.mark.parametrize("kind", ["trial", "aside"])
@pytest.mark.parametrize("round_number", [ROUND - 1, ROUND + 1])
async def test_a_trial_and_a_training_aside_reveal_and_leave_the_head_as_it_was(round_number: int, kind: str) -> None:
    """A prior model that is lost is made again under the round in which it was made first."""
    async with node() as n:
        bare(n)
        await n.do(personal("bare", "first"))
        before = {name: array.copy() for name, array in head_of(n, 0).items()}
        work = personal("first", "second", reveal=Reveal("exact"), **{kind: True})
        result = await n.do(work, round_number=round_number)
        assert result.update is not None
        assert not result.keeps
        for name, array in head_of(n, 0).items():
            assert np.array_equal(array, before[name])


@pytest.mark.parametrize("headless", [False, True])
async def test_what_is_handed_on_is_rounded_and_what_is_revealed_or_kept_is_not(
    tmp_path: Path, headless: bool
) -> None:
    start = Start("bare" if headless else "start", HERE, without_head=headless)
    steps = (STEP_HEAD, STEP_ROUNDING) if headless else (STEP_ROUNDING,)
    async with node(state_dir=tmp_path) as n:
        bare(n)
        result = await n.do(Train(start, "a", SETTINGS, Reveal("exact"), retain=True, outgoing=steps))
        head = n.clients.initial_weights(derive(SETTINGS.seed, "initial-weights")).arrays
        whole = Weights.of({**head, **(await n.store.get(start.model_id)).arrays}, n.clients.tensors)
        after = Clients(Blobs(), None).train(0, whole, SETTINGS, ROUND, Control()).after
        shown = reveal("exact", whole, after, SETTINGS.learning_rate, 0)
        assert (await n.store.get("a.update")).digest == shown.digest
        if headless:
            assert all(np.array_equal(array, after.arrays[name]) for name, array in head_of(n, 0).items())
        kept = await n.store.get("a")
        trained = after.part(kept.tensors)
        assert kept.bfloat16
        assert kept.digest != trained.digest
        assert kept.digest == rounded(trained).digest == result.ref.digest
    async with node(state_dir=tmp_path) as again:
        assert (await again.store.get("a")).digest == kept.digest


@pytest.mark.parametrize("retain", [False, True])
async def test_a_brought_result_is_uploaded_before_the_report_and_kept_only_if_retained(retain: bool) -> None:
    async with node() as n:
        result = await n.do(Train(Start("start", HERE), "end", SETTINGS, retain=retain, bring=True))
        assert result.ref == n.uploads["end"].ref("end")
        assert ("end" in n.store) == retain


async def test_a_result_that_cannot_be_brought_is_the_orders_failure() -> None:
    async with node() as n:
        unreachable = Failure(FailureCode.UNREACHABLE, "the manager is gone")

        async def fail(*_: object) -> None:
            raise WeightsError(unreachable.code, unreachable.detail)

        order = Order(OrderKey(1, "train", 0, 0), 0, Train(Start("start", HERE), "end", SETTINGS, bring=True))
        assert await why_not(n.worker.carry_out(order, fail)) == unreachable
        assert "end" not in n.store


async def test_a_training_is_told_of_with_what_it_keeps_though_its_upload_is_called_off() -> None:
    """Otherwise a client would go on from a training of which its node has no receipt."""
    settings = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT))
    async with node() as n:
        uploading, told = asyncio.Event(), list[Trained]()

        async def never(*_: object) -> None:
            uploading.set()
            await asyncio.Event().wait()

        order = Order(OrderKey(1, "train", 0, 0), 0, Train(Start("start", HERE), "end", settings, bring=True))
        running = asyncio.create_task(n.worker.carry_out(order, never, told.append))
        await uploading.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert n.clients.personal.get_before(0, OPTIMIZER, 2) is not None
        [trained] = told
        assert trained.ref is not None


@pytest.mark.parametrize("bring", [False, True])
@pytest.mark.parametrize("retain", [False, True])
async def test_a_training_that_is_called_off_as_it_is_published_is_told_of_and_its_model_is_not_held(
    bring: bool, retain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT))
    async with node() as n:
        publishing, go_on, told, publish = asyncio.Event(), asyncio.Event(), list[Trained](), Trainer._told

        async def slow(*given: Any) -> Any:
            publishing.set()
            await go_on.wait()
            return await publish(*given)

        monkeypatch.setattr(Trainer, "_told", slow)
        work = Train(Start("start", HERE), "end", settings, Reveal("exact"), retain, bring=bring)
        running = asyncio.create_task(
            n.worker.carry_out(Order(OrderKey(1, "train", 0, 0), 0, work), n._upload, told.append)
        )
        await publishing.wait()
        running.cancel()
        n.store.release(["end", update_of("end")])  # the order to release it comes before the model does
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(told) == 1
        assert n.clients.personal.get_before(0, OPTIMIZER, 2) is not None
        assert ("end" in n.store) is retain
        assert (update_of("end") in n.store) is retain


async def test_a_training_that_is_called_off_before_it_is_published_is_not_told_of_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT))
    async with node() as n:
        preparing, go_on, told = threading.Event(), threading.Event(), list[Trained]()
        put = n.clients.personal.put

        def slow(*given: Any) -> None:
            preparing.set()
            assert go_on.wait(10)
            put(*given)

        monkeypatch.setattr(n.clients.personal, "put", slow)
        order = Order(OrderKey(1, "train", 0, 0), 0, Train(Start("start", HERE), "end", settings, Reveal("exact")))
        running = asyncio.create_task(n.worker.carry_out(order, n._upload, told.append))
        assert await asyncio.to_thread(preparing.wait, 10)
        running.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not told
        assert n.clients.personal.get_before(0, OPTIMIZER, 2) is None
        assert "end" not in n.store
        assert update_of("end") not in n.store


async def test_a_result_without_a_receipt_is_given_to_nobody_who_asks_for_it_later() -> None:
    async with node() as n:
        order = Order(OrderKey(1, "train", 0, 0), 0, Train(Start("start", HERE), "end", SETTINGS, Reveal("exact")))
        with pytest.raises(RunError, match=r"receipts\.jsonl"):
            await n.worker.carry_out(order, n._upload, no_receipt)
        assert update_of("end") not in n.store
        with pytest.raises(WeightsError, match=r"receipts\.jsonl cannot be written"):
            await n.store.get("end")


async def test_what_is_brought_has_no_head_and_is_rounded_where_the_result_is() -> None:
    async with node() as n:
        shared = without_head(n.clients.tensors)
        n.store.put("without", (await n.store.get("start")).part(shared))
        start, steps = Start("without", HERE, without_head=True), (STEP_HEAD, STEP_ROUNDING)
        result = await n.do(Train(start, "end", SETTINGS, bring=True, outgoing=steps))
        brought = n.uploads["end"]
        assert brought.tensors == shared
        assert brought.bfloat16
        assert result.ref == brought.ref("end")
