"""Models that travel coded between two processes: the same bits, fewer bytes, and a way back to raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.messages import Failure, FailureCode, ModelHeader, ModelRef, TensorSpec
from fedgsp.tensors.encoding import rounded
from fedgsp.tensors.weights import Came, Weights
from fedgsp.transfers import model_streams, pipes
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.coding import CODING, Encoder, blocks
from fedgsp.transfers.link_choice import AUTO, CODED, RAW
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import model_pb2, model_pb2_grpc
from tests.support.holders import (
    PLENTY,
    Says,
    data,
    digest,
    refused,
    registered,
    serving_store,
)
from tests.support.serving import serving
from tests.support.weights import TENSORS, some_weights, vector


@pytest.fixture(autouse=True)
def _through_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_allowed", False)


SIZE = 300_000
BYTES = 4 * SIZE


def model(seed: int, base: Weights | None = None) -> Weights:
    rng = np.random.default_rng(seed)
    values = (
        rng.standard_normal(SIZE) if base is None else base.buffer.view(np.float32) + 1e-4 * rng.standard_normal(SIZE)
    )
    made = Weights.of({"w": values}, vector(SIZE))
    _ = made.digest
    return made


START = model(0)
NEXT = model(1, START)


async def having(*models: Weights, wire_setting: str = CODED) -> Bases:
    bases = Bases(wire_setting)
    for one in models:
        await bases.remember(one)
    return bases


async def fetched(weights: Weights, holder: Bases | None, reader: Bases | None) -> Weights:
    store = ModelStore()
    store.put("m", weights)
    async with serving_store(store, bases=holder) as served:
        return await fetch(served.channel, "m", weights.tensors, PLENTY, bases=reader)


async def uploaded(weights: Weights, sender: Bases | None, receiver: Bases | None) -> Weights:
    store = ModelStore()
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY, bases=receiver) as served:
        await upload(served.channel, "m", weights, bases=sender)
    return store.held("m")


WAYS = {"fetched": fetched, "uploaded": uploaded}


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_comes_bit_for_bit_in_fewer_bytes_if_both_ends_have_a_base(way: str) -> None:
    sender, receiver = await having(START), await having(START)
    found = await WAYS[way](NEXT, sender, receiver)
    assert found.buffer.tobytes() == NEXT.buffer.tobytes()
    assert found.digest == NEXT.digest
    assert found.came is not None
    assert found.came.coding == "coded"
    assert found.came.travelled < 0.7 * BYTES
    assert found in receiver
    assert NEXT in sender


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("setting", "kept", "coding"),
    [(CODED, (), "packed"), (CODED, (model(5),), "packed"), (RAW, (START,), "raw"), (None, (), "raw")],
)
async def test_a_receiver_without_the_base_gets_the_model_all_the_same(
    way: str, setting: str | None, kept: tuple[Weights, ...], coding: str
) -> None:
    receiver = await having(*kept, wire_setting=setting) if setting is not None else None
    found = await WAYS[way](NEXT, await having(START), receiver)
    assert found.buffer.tobytes() == NEXT.buffer.tobytes()
    assert found.came is not None
    assert found.came.coding == coding
    assert found.came.travelled <= BYTES


@pytest.mark.parametrize("way", WAYS)
async def test_a_sender_that_codes_nothing_is_understood(way: str) -> None:
    receiver = await having(START)
    for sender in (None, Bases(RAW)):
        found = await WAYS[way](NEXT, sender, receiver)
        assert found.came == Came(BYTES, "raw")
        assert found not in receiver


@pytest.mark.parametrize("way", WAYS)
async def test_the_next_model_is_coded_against_the_one_that_travelled_before(way: str) -> None:
    sender, receiver = Bases(CODED), Bases(CODED)
    first = await WAYS[way](START, sender, receiver)
    second = await WAYS[way](NEXT, sender, receiver)
    again = await WAYS[way](NEXT, sender, receiver)
    assert [one.came.coding for one in (first, second, again) if one.came] == ["packed", "coded", "coded"]
    assert again.came is not None
    assert again.came.travelled < 1000


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_that_the_receiver_has_from_somebody_else_costs_almost_nothing(way: str) -> None:
    found = await WAYS[way](NEXT, Bases(CODED), await having(NEXT))
    assert found.digest == NEXT.digest
    assert found.came is not None
    assert found.came.travelled < 1000


async def test_a_receiver_may_have_another_base_than_the_best() -> None:
    best = model(2, NEXT)
    weights = model(3, best)
    found = await fetched(weights, await having(START, NEXT, best), await having(NEXT))
    assert found.digest == weights.digest
    assert found.came is not None
    assert found.came.coding == "coded"


@pytest.mark.parametrize("way", WAYS)
async def test_rounded_models_and_small_ones_and_empty_ones_travel_coded(way: str) -> None:
    base, weights = rounded(model(0).copy()), rounded(model(1, START).copy())
    _ = base.digest
    found = await WAYS[way](weights, await having(base), await having(base))
    assert found.bfloat16
    assert found.digest == weights.digest
    assert found.came is not None
    assert found.came.travelled < 0.4 * BYTES
    for small in (some_weights(), Weights.empty(()), some_weights(0, vector(0))):
        assert (await WAYS[way](small, Bases(CODED), Bases(CODED))).digest == small.digest


@pytest.mark.parametrize("way", WAYS)
async def test_a_link_of_unknown_speed_gives_the_same_bits(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp.transfers.model_service.is_near", lambda _: False)
    sender, receiver = await having(START, wire_setting=AUTO), await having(START, wire_setting=AUTO)
    found = await WAYS[way](NEXT, sender, receiver)
    assert found.digest == NEXT.digest
    assert found.came is not None
    assert found.came.coding == "coded"
    assert found in receiver


async def test_nothing_is_coded_or_kept_on_this_machine_by_itself() -> None:
    holder, reader = await having(START, wire_setting=AUTO), await having(START, wire_setting=AUTO)
    found = await fetched(NEXT, holder, reader)
    assert found.came == Came(BYTES, "raw")
    assert found not in reader
    assert NEXT not in holder


# --- what is refused

SMALL, BASE = some_weights(1), some_weights(0)
CODE = b"".join(Encoder(SMALL, BASE).frame(block) for block in blocks(TENSORS, False))


def offer(*, coding: str = CODING, bases: tuple[bytes, ...] = (BASE.digest,), **fields: Any) -> model_pb2.Chunk:
    header = ModelHeader(ModelRef("m", 40), TENSORS, coding=coding, bases=bases, paced=True, **fields)
    return model_pb2.Chunk(header=wire.encode(header))


OTHER = bytes(CODE[:-1]) + bytes([CODE[-1] ^ 1])
BAD_STREAMS = {
    "an unknown coding": ([offer(coding="rot13"), data(CODE)], FailureCode.BAD_STREAM, "unknown coding 'rot13'"),
    "a pipe too": ([offer(pipe="1/2/" + "0" * 32), data(CODE)], FailureCode.BAD_STREAM, "in code and through a pipe"),
    "what is no code": ([offer(), data(b"\1\1\0\0\0x")], FailureCode.BAD_STREAM, "a code cannot be read"),
    "the buffer itself": ([offer(), data(bytes(range(40)))], FailureCode.BAD_STREAM, "a frame of kind 0 with"),
    "a code that was cut": ([offer(), data(CODE[:-1]), digest(SMALL.digest)], FailureCode.CUT_SHORT, "bytes came in"),
    "no digest": ([offer(), data(CODE)], FailureCode.CUT_SHORT, "40 of 40 bytes came in code, and no digest"),
    "a byte too much": ([offer(), data(CODE + b"!")], FailureCode.TOO_LONG, "bytes came after its last block"),
    "another model": ([offer(), data(CODE), digest(BASE.digest)], FailureCode.WRONG_DIGEST, "announced digest"),
}


async def answer_of(
    chunks: list[model_pb2.Chunk], bases: Bases, tensors: tuple[TensorSpec, ...] = TENSORS
) -> tuple[Failure, list[int | None]]:
    """Why a stream is refused, and what its receiver has answered before."""
    answers: list[int | None] = []

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk.SerializeToString()

    async def answer(base: int | None) -> None:
        answers.append(base)

    received = model_streams.received(stream(), lambda _: tensors, PLENTY, lambda _: True, None, answer, bases=bases)
    return await refused(received), answers


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_a_stream_is_refused_with_a_reason(name: str) -> None:
    chunks, code, text = BAD_STREAMS[name]
    failure, answers = await answer_of(chunks, await having(BASE))
    assert failure.code is code
    assert text in failure.detail
    assert answers[:1] in ([], [1])


async def test_a_code_against_another_base_than_the_chosen_one_is_refused() -> None:
    wrong = model(7, NEXT)
    code = b"".join(Encoder(NEXT, wrong).frame(block) for block in blocks(NEXT.tensors, False))
    header = ModelHeader(ModelRef("m", BYTES), NEXT.tensors, coding=CODING, bases=(START.digest,))
    chunks = [model_pb2.Chunk(header=wire.encode(header)), data(code), digest(NEXT.digest)]
    failure, answers = await answer_of(chunks, await having(START), NEXT.tensors)
    assert (failure.code, answers) == (FailureCode.WRONG_DIGEST, [1])


async def test_what_comes_after_a_refusal_is_taken_for_the_bytes_themselves() -> None:
    failure, answers = await answer_of([offer(), data(bytes(41))], Bases(RAW))
    assert (failure.code, answers) == (FailureCode.TOO_LONG, [None])
    assert "more than the announced 40" in failure.detail


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4), st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_any_bytes_in_place_of_a_code_are_refused_with_a_reason(parts: list[bytes], kept: int) -> None:
    async def play() -> Failure:
        chunks = [offer(), *map(data, parts), digest(SMALL.digest)]
        return (await answer_of(chunks, await having(*[BASE, SMALL][:kept])))[0]

    codes = (FailureCode.BAD_STREAM, FailureCode.TOO_LONG, FailureCode.CUT_SHORT, FailureCode.WRONG_DIGEST)
    assert asyncio.run(play()).code in (*codes, FailureCode.NOT_FINITE)


async def test_a_peer_that_sends_no_code_is_told_so_or_left() -> None:
    """The holder of a model, and its uploader."""
    chunks, code, text = BAD_STREAMS["what is no code"]
    async with serving(registered(Says(chunks, then="silence"))) as served:
        failure = await refused(fetch(served.channel, "m", TENSORS, PLENTY, bases=await having(BASE)))
    assert (failure.code, text in failure.detail) == (code, True)
    options: dict[str, Any] = {"may_upload": lambda _: True, "max_bytes": lambda: PLENTY, "bases": await having(BASE)}
    store = ModelStore()
    async with serving_store(store, **options) as served:
        call = model_pb2_grpc.ModelServiceStub(served.channel).Upload(iter(chunks))
        assert (await call.read()).base == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert text in (caught.value.details() or "")
    assert len(store) == 0


async def test_a_receiver_that_chooses_a_base_that_was_not_offered_is_given_up() -> None:
    store = ModelStore()
    store.put("m", SMALL)
    async with serving_store(store, bases=Bases(CODED)) as served:
        call = served.channel.stream_stream(
            "/fedgsp.v1.ModelService/Fetch", model_pb2.FetchRequest.SerializeToString, model_pb2.Chunk.FromString
        )()
        await call.write(model_pb2.FetchRequest(model_id="m"))
        assert (await call.read()).header.coding == CODING
        await call.write(model_pb2.FetchRequest(receipt=model_pb2.Receipt(base=7)))
        await call.done_writing()
        assert await call.code() is not None
        assert "base 7 was chosen, and not offered" in (await call.details() or "")
