"""Streams of weights that hold anything, to those who take them.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import contextlib

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers import model_calls, stalls
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import model_pb2
from tests.support.fuzzing import (
    ENDINGS,
    MOMENT_S,
    SOON_S,
    check_refusal,
    fuzzed,
    heard,
    path,
    said,
    say,
    soon,
    speaking,
    unharmed,
    until,
)
from tests.support.holders import BYTES, WEIGHTS, data, digest, header, serving_store
from tests.support.serving import serving
from tests.support.weights import TENSORS

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

FETCH, UPLOAD = path("ModelService", "Fetch"), path("ModelService", "Upload")
GOOD = [header(), data(BYTES), digest()]
CHUNKS = said(model_pb2.Chunk, GOOD, ("m", "w", "h", "seen", "float32", "int8", "bfloat16"))
MOST = 1 << 20


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """A good stream with some of its messages changed, or any messages."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.lists(CHUNKS, max_size=4))
    parts = [chunk.SerializeToString() for chunk in (header(), data(BYTES[:16]), data(BYTES[16:]), digest())]
    parts[draw(st.integers(0, 3))] = draw(CHUNKS)
    return parts[: draw(st.integers(1, 4))]


@fuzzed(40)
@given(chunks=streams(), ending=ENDINGS)
async def test_whatever_is_uploaded_only_what_is_good_is_kept(chunks: list[bytes], ending: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.02)
        store = ModelStore()
        wanted = {"may_upload": lambda model_id: model_id == "m", "max_bytes": lambda: MOST}
        async with unharmed(), serving_store(store, **wanted) as served:
            call = served.channel.stream_stream(UPLOAD)()
            await say(call, chunks, ending)
            if ending == "cancel":
                call.cancel()
                await until(call.done)
            else:
                try:
                    await soon(call.read())
                except grpc.aio.AioRpcError as error:
                    check_refusal(error)
                    assert len(store) == 0
            assert sum(store.held(model_id).buffer.nbytes for model_id in store.ids("")) <= MOST
            store.clear()
            patch.setattr(stalls, "CHUNK_TIMEOUT_S", 30.0)  # a loaded machine is no fault of this upload
            await upload(served.channel, "m", WEIGHTS)
            assert (await store.get("m")).digest == WEIGHTS.digest


@fuzzed(40)
@given(chunks=streams(), ending=ENDINGS, expected=st.sampled_from([TENSORS, None]), promised=st.booleans())
async def test_whatever_a_holder_says_a_fetch_ends_with_weights_or_a_reason(
    chunks: list[bytes], ending: str, expected: object, promised: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.02)
        patch.setattr(model_calls, "PROMISE_TIMEOUT_S", 0.1)
        async with unharmed(), serving(speaking(FETCH, chunks, ending)) as served:
            with contextlib.suppress(WeightsError):
                found = await soon(fetch(served.channel, "m", expected, MOST, promised=promised))  # type: ignore[arg-type]
                assert isinstance(found, Weights)
                assert found.buffer.nbytes <= MOST


@fuzzed(15)
@given(request=said(model_pb2.FetchRequest, [model_pb2.FetchRequest(model_id="m")], ("m",)))
async def test_whatever_is_asked_for_a_holder_gives_what_it_has(request: bytes) -> None:
    store = ModelStore()
    store.put("m", WEIGHTS)
    async with unharmed(), serving_store(store) as served:
        # What it has not may be a promise, which is waited for.
        answers, status = await heard(served.channel.unary_stream(FETCH)(request), SOON_S, first_s=MOMENT_S)
        assert not answers or status is grpc.StatusCode.OK
        assert not store._waiting or status is None
        assert (await soon(fetch(served.channel, "m", TENSORS, 40))).digest == WEIGHTS.digest
        await until(lambda: not store._waiting)


async def test_a_request_that_cannot_be_read_is_refused_in_words() -> None:
    async with unharmed(), serving_store(ModelStore()) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.channel.unary_stream(FETCH)(b"\xff\xff").read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "the first request names no model"
