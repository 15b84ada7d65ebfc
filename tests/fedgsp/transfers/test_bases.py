"""The models that two processes have in common, and which of them is the best to code against."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.tensors.weights import Weights
from fedgsp.transfers import bases
from fedgsp.transfers.bases import Bases, best_first
from fedgsp.transfers.coding import coded_size
from fedgsp.transfers.link_choice import AUTO, CODED, RAW
from fedgsp.transfers.pacing import Way
from tests.support.scripted import let_others_run
from tests.support.weights import some_weights, vector

SIZE = 3000
TENSORS = vector(SIZE)


def walk(steps: int, seed: int = 0) -> list[Weights]:
    """Models of a relay: each differs a little from the one before."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(SIZE)
    found = []
    for _ in range(steps):
        found.append(Weights.of({"w": values}, TENSORS))
        values = values + 1e-3 * rng.standard_normal(SIZE)
    return found


@given(st.permutations(range(4)), st.integers(0, 20))
@settings(deadline=None, max_examples=20)
def test_the_best_base_of_a_relay_is_the_last_hop_before_whatever_their_order(order: list[int], seed: int) -> None:
    *before, weights = walk(5, seed)
    ranked = best_first(weights, [before[place] for place in order])
    assert ranked[0] is before[3]
    sizes = [coded_size(weights, one) for one in ranked]
    assert sizes == sorted(sizes)
    assert all(size < coded_size(weights, None) for size in sizes)


def test_a_base_that_does_not_help_is_left_out_and_equal_ones_keep_their_order() -> None:
    weights, near = walk(2)
    far = some_weights(9, TENSORS)
    far.buffer[:] = np.random.default_rng(1).integers(0, 256, len(far.buffer), np.uint8)
    twins = [near, Weights(near.tensors, near.buffer.copy())]
    assert best_first(weights, [far, *twins]) == twins
    assert best_first(weights, []) == []


async def known(model: Weights) -> Weights:
    _ = model.digest
    return model


async def test_the_models_used_last_are_kept() -> None:
    kept, models = Bases(CODED), [await known(one) for one in walk(bases.MOST_KEPT + 1)]
    for model in models[:-1]:
        await kept.remember(model)
    assert kept.used(models[0].digest) is not None
    await kept.remember(models[-1])
    assert kept.used(models[1].digest) is None
    assert models[1] not in kept
    assert all(model in kept for model in (models[0], *models[2:]))


async def test_large_models_are_forgotten_sooner_but_never_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "MOST_BYTES", 4 * SIZE)
    kept, models = Bases(CODED), [await known(one) for one in walk(4)]
    for model in models:
        await kept.remember(model)
    assert [model in kept for model in models] == [False, False, True, True]


async def test_a_receiver_chooses_the_first_base_that_it_has_and_that_fits() -> None:
    kept, models, other = Bases(CODED), [await known(one) for one in walk(3)], await known(some_weights(0, vector(7)))
    for model in (*models[:2], other):
        await kept.remember(model)
    wanted = Weights.empty(TENSORS)
    unknown, (first, second, third) = bytes(32), (model.digest for model in models)
    for offered, number in (
        ([], 0),
        ([unknown, third], 0),
        ([other.digest], 0),
        ([unknown, second, first], 2),
        ([first, second], 1),
        ([b"", first], 2),
    ):
        assert await kept.chosen("m", wanted, offered) == number


async def test_a_base_is_fetched_if_the_process_can_get_it() -> None:
    start, weights = [await known(one) for one in walk(2)]
    asked = []

    async def further(model_id: str) -> Weights | None:
        asked.append(model_id)
        return start

    kept = Bases(CODED, further)
    assert await kept.chosen("m", Weights.empty(TENSORS), [start.digest]) == 1
    offer = await Bases(CODED, further).offer("n", weights, Way())
    assert [base.digest for base in offer.bases] == [weights.digest, start.digest]
    assert asked == ["m", "n"]


async def test_a_base_that_does_not_come_soon_holds_up_no_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "FURTHER_S", 0.01)
    start, weights = [await known(one) for one in walk(2)]

    async def never(_: str) -> Weights | None:
        await asyncio.Event().wait()
        return start

    async def called_off(_: str) -> Weights | None:
        raise asyncio.CancelledError

    for further in (never, called_off):
        kept = Bases(CODED, further)
        async with asyncio.timeout(20):
            assert await kept.chosen("m", Weights.empty(TENSORS), [start.digest]) == 0
            assert [base.digest for base in (await kept.offer("n", weights, Way())).bases] == [weights.digest]


async def test_whoever_waits_for_a_base_can_be_cancelled() -> None:
    async def never(_: str) -> Weights | None:
        await asyncio.Event().wait()
        return None

    waiting = asyncio.create_task(Bases(CODED, never).chosen("m", Weights.empty(TENSORS), [bytes(32)]))
    await let_others_run()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_offer_names_only_bases_of_the_same_tensors() -> None:
    *before, weights = [await known(one) for one in walk(4)]
    kept = Bases(CODED)
    for model in (*before, await known(some_weights(0, vector(7)))):
        await kept.remember(model)
    offer = await kept.offer("m", weights, Way())
    assert offer.coded
    assert offer.remember
    assert [base.digest for base in offer.bases] == [model.digest for model in (weights, *reversed(before))]


async def test_nothing_is_offered_or_remembered_over_fast_links_and_on_this_machine() -> None:
    weights, fast = walk(1)[0], Way()
    fast.rate = 1e9
    for setting, way in ((AUTO, fast), (AUTO, Way(near=True)), (RAW, Way())):
        offer = await Bases(setting).offer("m", weights, way)
        assert (offer.coded, offer.remember) == (False, False)
    assert not Bases(RAW).takes_codes


async def test_a_slow_processor_codes_less() -> None:
    kept, weights, way = Bases(AUTO), walk(1)[0], Way()
    way.rate = 1e6
    assert (await kept.offer("m", weights, way)).coded
    for _ in range(20):
        kept.took(10**6, 2.0)
    assert kept.speed < 1e6
    assert not (await kept.offer("m", weights, way)).coded
    kept.took(0, 0.0)
    assert kept.speed < 1e6
