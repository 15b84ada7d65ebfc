from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.connections.channels import Channels, start_server
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import Failure, FailureCode, TensorSpec
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers import model_calls, model_service, stalls
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.pacing import MOST_NEAR_CHUNK
from fedgsp.v1 import model_pb2
from tests.support.callers import OPEN
from tests.support.holders import (
    BYTES,
    PLENTY,
    WEIGHTS,
    Says,
    answer_to,
    answer_to_upload,
    data,
    digest,
    header,
    refused,
    registered,
    serving_store,
)
from tests.support.serving import nobody, serving
from tests.support.wall import wall
from tests.support.weights import TENSORS, some_weights, vector

# --- what goes right


@pytest.mark.parametrize("elements", [0, 1, *(MOST_NEAR_CHUNK // 4 + more for more in (-1, 0, 1)), 700_000])
async def test_weights_come_as_they_were_kept(elements: int) -> None:
    store, weights = ModelStore(), some_weights(3, vector(elements))
    store.put("m", weights)
    async with serving_store(store) as served:
        fetched = await fetch(served.channel, "m", vector(elements), weights.buffer.nbytes)
    assert fetched.tensors == weights.tensors
    assert np.array_equal(fetched.buffer, weights.buffer)
    assert fetched.digest == weights.digest


async def test_weights_of_any_tensors_are_taken_where_none_are_expected() -> None:
    store = ModelStore()
    store.put("m", WEIGHTS)
    async with serving_store(store) as served:
        assert (await fetch(served.channel, "m", None, 40)).tensors == TENSORS


async def test_an_upload_that_was_asked_for_is_kept() -> None:
    store, weights = ModelStore(), some_weights(4, vector(600_000))
    async with serving_store(store, may_upload=lambda model_id: model_id == "m", max_bytes=lambda: PLENTY) as served:
        await upload(served.channel, "m", weights)
    assert np.array_equal((await store.get("m")).buffer, weights.buffer)


async def test_many_fetch_one_model_at_once() -> None:
    store = ModelStore()
    store.put("m", some_weights(5, vector(300_000)))
    async with serving_store(store) as served:
        fetched = await asyncio.gather(*(fetch(served.channel, "m", None, PLENTY) for _ in range(5)))
    assert len({weights.digest for weights in fetched}) == 1


# --- promises


class Watched(ModelStore):
    """Tells when somebody begins and ends asking."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def get(self, model_id: str) -> Weights:
        self.asked.set()
        try:
            return await super().get(model_id)
        finally:
            self.answered.set()


async def test_a_promised_model_is_waited_for() -> None:
    store = Watched()
    async with serving_store(store) as served:
        task = asyncio.create_task(fetch(served.channel, "m", TENSORS, 40))
        await store.asked.wait()
        store.put("m", WEIGHTS)
        assert (await task).digest == WEIGHTS.digest


@pytest.mark.parametrize("late", [False, True])
async def test_a_promise_that_fails_is_told_with_the_kind_of_its_reason(late: bool) -> None:
    store, reason = Watched(), Failure(FailureCode.TASK_RAISED, "division by zero")
    async with serving_store(store) as served:
        if late:
            store.fail("m", reason)
        task = asyncio.create_task(refused(fetch(served.channel, "m", TENSORS, 40)))
        await store.asked.wait()
        store.fail("m", reason)
        failure = await task
    assert failure.code is FailureCode.NO_SUCH_MODEL
    assert "task_raised: this process cannot give that model" in failure.detail  # its log has the rest


async def test_whoever_stops_waiting_for_a_promise_leaves_nothing_behind_at_the_holder() -> None:
    store = Watched()
    async with serving_store(store) as served:
        task = asyncio.create_task(fetch(served.channel, "m", TENSORS, 40))
        await store.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.answered.wait()


async def test_a_promise_that_is_never_kept_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "PROMISE_TIMEOUT_S", 0.1)
    async with serving_store(ModelStore()) as served:
        failure = await refused(fetch(served.channel, "m", TENSORS, 40))
    assert failure == Failure(FailureCode.UNREACHABLE, "DEADLINE_EXCEEDED: Deadline Exceeded")


async def test_a_model_that_is_not_there_is_asked_for_first() -> None:
    store, asked = ModelStore(), []

    async def wanted(model_id: str) -> None:
        asked.append(model_id)
        store.put(model_id, WEIGHTS)

    async with serving_store(store, wanted=wanted) as served:
        for _ in range(2):  # the owner of the store is asked again: a model that is there may not be good yet
            assert (await fetch(served.channel, "m", TENSORS, 40)).digest == WEIGHTS.digest
    assert asked == ["m", "m"]


async def test_a_model_that_cannot_be_had_is_told_with_the_kind_of_its_reason() -> None:
    async def wanted(_: str) -> None:
        raise WeightsError(FailureCode.NODE_LOST, "node n1 is gone")

    async with serving_store(ModelStore(), wanted=wanted) as served:
        failure = await refused(fetch(served.channel, "m", TENSORS, 40))
    assert failure == Failure(FailureCode.NO_SUCH_MODEL, "NOT_FOUND: node_lost: this process cannot give that model")


# --- silence, loss, and noise


async def test_a_holder_that_falls_silent_after_its_header_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.05)
    says = Says([header(), data(BYTES[:8])], "silence")
    async with serving(registered(says)) as served:
        failure = await refused(fetch(served.channel, "m", TENSORS, PLENTY))
        await says.cancelled.wait()
    assert failure.code is FailureCode.STALLED


async def test_a_holder_that_takes_no_question_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system accepts the connection, and its program says nothing at all: no HTTP/2, no refusal."""
    monkeypatch.setattr(model_calls, "ASK_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel:
            failure = await refused(fetch(channel, "m", TENSORS, PLENTY))
    assert failure == Failure(FailureCode.UNREACHABLE, "nobody took the question for model 'm'")


async def test_a_holder_that_goes_on_forever_is_cut_off() -> None:
    says = Says([header(), data(BYTES)], "repeat")
    async with serving(registered(says)) as served:
        assert (await refused(fetch(served.channel, "m", TENSORS, PLENTY))).code is FailureCode.TOO_LONG
        await says.cancelled.wait()


@pytest.mark.parametrize("chunks", [[], [header(), data(BYTES[:8])]])
async def test_an_uploader_that_says_nothing_is_given_up(
    chunks: list[model_pb2.Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.05)

    async def say() -> AsyncIterator[model_pb2.Chunk]:
        for chunk in chunks:
            yield chunk
        await asyncio.Event().wait()

    told, store = await answer_to_upload(say(), grpc.StatusCode.ABORTED)
    assert told.startswith("stalled: no chunk of")
    assert len(store) == 0


async def test_an_upload_that_was_not_asked_for_is_refused_by_its_header() -> None:
    told, store = await answer_to_upload([header(model_id="other"), data(BYTES)])
    assert told == "bad_stream: model 'other' was not asked for"
    assert len(store) == 0


async def test_a_process_that_asks_for_nothing_takes_nothing() -> None:
    store = ModelStore()
    async with serving_store(store) as served:
        failure = await refused(upload(served.channel, "m", WEIGHTS))
    assert "was not asked for" in failure.detail
    assert len(store) == 0


async def test_an_upload_that_comes_too_late_is_not_kept() -> None:
    """Nobody would ever release what was asked for by a group that has ended."""
    asked = iter([True, False])
    chunks = [header(), data(BYTES), digest()]
    told, store = await answer_to_upload(chunks, grpc.StatusCode.ABORTED, may_upload=lambda _: next(asked))
    assert told == "cancelled: model 'm' is not wanted any more"
    assert len(store) == 0


async def test_a_holder_that_is_not_there_is_unreachable() -> None:
    async with nobody() as served:
        for call in (fetch(served.channel, "m", None, 40), upload(served.channel, "m", WEIGHTS)):
            failure = await refused(call)
            assert failure.code is FailureCode.UNREACHABLE
            assert failure.detail == f"nothing listens at {served.address}"


async def test_a_holder_that_dies_in_the_middle_is_unreachable() -> None:
    says = Says([header(), data(BYTES[:8])], "silence")
    async with serving(registered(says)) as served:
        task = asyncio.create_task(refused(fetch(served.channel, "m", TENSORS, PLENTY)))
        await says.said.wait()
        await served.server.stop(None)
        failure = await task
    assert failure.code is FailureCode.UNREACHABLE


async def test_a_chunk_larger_than_a_message_may_be_is_refused() -> None:
    failure = await answer_to([header(vector(2_000_000), size=8_000_000), data(bytes(8_000_000))], expected=None)
    assert failure.code is FailureCode.UNREACHABLE
    assert failure.detail.startswith("RESOURCE_EXHAUSTED")


class Noise(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no annotations
    """Answers every call with these bytes as messages."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages

    def service(self, handler_call_details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> AsyncIterator[bytes]:
            for message in self.messages:
                yield message

        return grpc.unary_stream_rpc_method_handler(answer)


@given(st.lists(st.binary(max_size=30), max_size=3))
@settings(deadline=None, max_examples=30)
async def test_noise_is_a_failure_and_nothing_else(messages: list[bytes]) -> None:
    async with serving(lambda server: server.add_generic_rpc_handlers((Noise(messages),))) as served:
        failure = await refused(fetch(served.channel, "m", None, PLENTY))
    assert isinstance(failure.code, FailureCode)


def is_well_formed(chunks: list[model_pb2.Chunk]) -> bool:
    end = chunks.index(digest()) if digest() in chunks else 0  # what comes after is not read
    content = b"".join(chunk.data for chunk in chunks[:end])
    return content == BYTES and chunks[0] == header() and all(chunk.data for chunk in chunks[1:end])


chunks_of_any_kind = st.lists(
    st.one_of(
        st.just(header()),
        st.builds(
            lambda size, model_id: header(size=size, model_id=model_id),
            st.sampled_from([0, 39, 40, 2**64 - 1]),
            st.sampled_from(["m", ""]),
        ),
        st.just(digest()),
        st.builds(digest, st.sampled_from([b"", WEIGHTS.digest[:8], blake3(b"").digest()])),
        st.builds(lambda a, b: data(BYTES[a:b]), st.integers(0, 40), st.integers(0, 40)),
        st.just(data(BYTES)),
        st.just(model_pb2.Chunk()),
    ),
    max_size=5,
)


@given(chunks_of_any_kind)
@settings(deadline=None, max_examples=40)
async def test_any_stream_gives_the_right_weights_or_a_reason(chunks: list[model_pb2.Chunk]) -> None:
    async with serving(registered(Says(chunks))) as served:
        try:
            fetched = await fetch(served.channel, "m", TENSORS, 40)
        except WeightsError as error:
            why: Failure | None = error.failure
        else:
            why = None
            assert fetched.buffer.tobytes() == BYTES
    assert (why is None) == is_well_formed(chunks)


async def test_a_link_that_needs_long_is_not_taken_for_a_silent_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a ping comes after the bytes on their way; confirmed chunks say that the peer is there."""
    monkeypatch.setattr("fedgsp.connections.channels.is_near", lambda _: False)
    count = 50_000
    tensors = (TensorSpec("w", "float32", (count,)),)
    weights = Weights.of({"w": np.ones(count, np.float32)}, tensors)
    store = ModelStore()
    store.put("down", weights)
    models = ModelServicer(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY)
    server, address = await start_server("127.0.0.1:0", [models.add_to], OPEN, lost_after_s=1.0)
    try:
        async with wall(address, rate=2e5) as thin, Channels(lost_after_s=1.0) as channels:
            channel = await channels.to(thin.address, TOP_SERVER)
            await upload(channel, "up", weights)
            assert (await fetch(channel, "down", tensors, PLENTY)).digest == (await store.get("up")).digest
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (FailureCode.STALLED, FailureCode.UNREACHABLE),
        (FailureCode.CANCELLED, FailureCode.UNREACHABLE),
        (FailureCode.WRONG_DIGEST, FailureCode.BAD_STREAM),
    ],
)
async def test_only_a_bad_model_is_called_bad(
    why: FailureCode, told: FailureCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse_it(*_: object, **__: object) -> None:
        raise WeightsError(why, "for that reason")

    monkeypatch.setattr(model_service, "received", refuse_it)
    async with serving_store(ModelStore(), may_upload=lambda _: True) as served:
        failure = await refused(upload(served.channel, "m", some_weights()))
    assert failure.code is told
    assert "for that reason" in failure.detail


@pytest.mark.parametrize("moves", ["fetch", "upload"])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_channel_that_is_closed_before_a_transfer_is_on_its_way_ends_the_transfer(
    moves: str, turns: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}")
        weights = Weights.of({"a": np.zeros(3, np.float32)}, (TensorSpec("a", "float32", (3,)),))
        moving = fetch(channel, "m", None, 1 << 20) if moves == "fetch" else upload(channel, "m", weights)
        transfer = asyncio.create_task(moving)
        for _ in range(turns):
            await asyncio.sleep(0)
        await channel.close()
        with pytest.raises((WeightsError, grpc.aio.UsageError)) as caught:
            await asyncio.wait_for(transfer, 10)
    if isinstance(caught.value, WeightsError):
        assert caught.value.failure.code is FailureCode.UNREACHABLE
