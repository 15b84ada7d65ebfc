from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import Failure, FailureCode
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers import model_store
from fedgsp.transfers.model_store import ModelStore
from tests.support.scripted import let_others_run
from tests.support.weights import some_weights

LOST = Failure(FailureCode.NODE_LOST, "its node is gone")


async def waiting(store: ModelStore, model_id: str, count: int = 1) -> list[asyncio.Task[Weights]]:
    """Tasks that are already waiting for a model."""
    tasks = [asyncio.create_task(store.get(model_id)) for _ in range(count)]
    await asyncio.sleep(0)  # a turn of the loop each: the first one takes them to their wait
    return tasks


async def test_a_model_that_is_there_is_had_at_once() -> None:
    store, weights = ModelStore(), some_weights()
    store.put("m", weights)
    assert await store.get("m") is weights
    assert "m" in store
    assert len(store) == 1


async def test_everyone_who_waits_gets_a_promised_model() -> None:
    store, weights = ModelStore(), some_weights()
    tasks = await waiting(store, "m", 3)
    assert not any(task.done() for task in tasks)
    store.put("other", some_weights(1))
    store.put("m", weights)
    assert [await task for task in tasks] == [weights] * 3


async def test_the_first_model_kept_under_an_id_stays() -> None:
    store, first = ModelStore(), some_weights(1)
    store.put("m", first)
    store.put("m", some_weights(1))
    store.fail("m", LOST)
    assert await store.get("m") is first


async def test_another_model_under_the_same_id_is_refused() -> None:
    store, first = ModelStore(), some_weights(1)
    store.put("m", first)
    with pytest.raises(WeightsError, match="another model has the name 'm' here") as caught:
        store.put("m", some_weights(2))
    assert caught.value.failure.code is FailureCode.BAD_ORDER
    assert await store.get("m") is first


async def test_a_failed_promise_raises_for_callers_that_wait_and_for_later_callers() -> None:
    store = ModelStore()
    (task,) = await waiting(store, "m")
    store.fail("m", LOST)
    for asked in (task, store.get("m")):
        with pytest.raises(WeightsError) as caught:
            await asked
        assert caught.value.failure == LOST


async def test_a_model_that_comes_after_all_is_had() -> None:
    store, weights = ModelStore(), some_weights()
    store.fail("m", LOST)
    store.put("m", weights)
    assert await store.get("m") is weights


async def test_a_failure_is_forgotten_when_its_id_is_released() -> None:
    store, weights = ModelStore(), some_weights()
    store.fail("m", LOST)
    store.release(["m", "unknown"])
    (task,) = await waiting(store, "m")
    store.put("m", weights)
    assert await task is weights


async def test_a_released_model_is_waited_for_again() -> None:
    store = ModelStore()
    store.put("m", some_weights())
    store.release(["m"])
    assert "m" not in store
    assert len(store) == 0
    (task,) = await waiting(store, "m")
    assert not task.done()
    task.cancel()


async def test_who_gives_up_waiting_disturbs_no_one() -> None:
    store, weights = ModelStore(), some_weights()
    first, second = await waiting(store, "m", 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    store.put("m", weights)
    assert await second is weights


async def test_a_waiter_that_is_cancelled_when_the_model_fails_does_not_disturb_the_others() -> None:
    store = ModelStore()
    first, second = await waiting(store, "m", 2)
    first.cancel()
    store.fail("m", LOST)
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, WeightsError]


async def test_the_caller_sets_the_deadline() -> None:
    store = ModelStore()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.get("never"), 0.01)


async def test_only_the_latest_failures_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "REMEMBERED_FAILURES", 2)
    store = ModelStore()
    for model_id in ("a", "b", "c"):
        store.fail(model_id, LOST)
    (oldest,) = await waiting(store, "a")
    assert not oldest.done()
    oldest.cancel()
    for model_id in ("b", "c"):
        with pytest.raises(WeightsError):
            await store.get(model_id)


async def test_clearing_forgets_models_and_failures() -> None:
    store = ModelStore()
    store.put("m", some_weights())
    store.fail("f", LOST)
    store.clear()
    assert len(store) == 0
    tasks = [*await waiting(store, "m"), *await waiting(store, "f")]
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()


ids = st.sampled_from("abc")
steps = st.lists(st.tuples(st.sampled_from(["put", "fail", "get", "release", "give up"]), ids), max_size=30)


@given(steps)
@settings(deadline=None, max_examples=60)
async def test_any_order_of_events_leaves_every_asker_with_the_right_answer(steps: list[tuple[str, str]]) -> None:
    store, weights = ModelStore(), some_weights()
    state: dict[str, str] = {}
    open_asks: dict[str, list[asyncio.Task[Weights]]] = {"a": [], "b": [], "c": []}
    for step, model_id in steps:
        asks = open_asks[model_id]
        known = state.get(model_id)
        match step:
            case "put":
                store.put(model_id, weights)
                state[model_id] = "held"
            case "fail":
                store.fail(model_id, LOST)
                state.setdefault(model_id, "failed")
            case "release":
                store.release([model_id])
                state.pop(model_id, None)
            case "get":
                asks += await waiting(store, model_id)
                assert asks[-1].done() == (known is not None)
            case "give up" if asks:
                asks.pop().cancel()
        if model_id in state:  # everyone was answered
            for result in await asyncio.gather(*asks, return_exceptions=True):
                assert result is weights if state[model_id] == "held" else isinstance(result, WeightsError)
            asks.clear()
        assert (model_id in store) == (state.get(model_id) == "held")
    for asks in open_asks.values():
        for task in asks:
            assert not task.done()
            task.cancel()


async def test_room_is_waited_for_until_enough_were_released() -> None:
    store = ModelStore()
    for name in "abc":
        store.put(name, some_weights())
    await store.fewer_than(4, "abc")
    waiting = asyncio.create_task(store.fewer_than(2, "abc"))
    store.release(["other", "a"])
    await let_others_run()
    assert not waiting.done()
    store.release(["b"])
    await waiting
