"""Peers that say of a window what is not so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import pytest

from fedgsp import channels, chunks, model_streams, windows
from fedgsp.messages import FailureCode
from fedgsp.model_calls import fetch, upload
from fedgsp.model_store import ModelStore
from fedgsp.v1 import model_pb2, model_pb2_grpc
from fedgsp.windows import SLOT_BYTES
from tests.support.handed_over import ELEMENTS, LARGE, a_window, offering, unknown
from tests.support.holders import PLENTY, Says, refused, registered, serving_store
from tests.support.serving import serving
from tests.support.weights import some_weights, vector

pytestmark = [
    pytest.mark.skipif(not windows.machine(), reason="no windows on this system"),
    pytest.mark.usefixtures("no_window_spare"),
]


class Receiver:
    """Asks for LARGE and then says what it is told to, whatever comes."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def ask(self) -> Any:
        await self.call.write(model_pb2.FetchRequest(model_id="m", machine=windows.machine()))
        header = (await self.call.read()).header
        assert header.window
        return header

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await self.call.read() is not grpc.aio.EOF:
                pass
        return await self.call.code(), await self.call.details()


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    store = ModelStore()
    store.put("m", unknown(LARGE))
    async with serving_store(store) as served:
        yield Receiver(model_pb2_grpc.ModelServiceStub(served.channel).Fetch())


async def test_a_receiver_that_never_says_it_has_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_streams, "CHUNK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(channels, "HEAR_OUT_S", 0.05)
    async with receiver() as asking:
        await asking.ask()
        assert await asking.ended() == (grpc.StatusCode.ABORTED, "stalled: no receipt of model 'm' for 0 s")


@pytest.mark.parametrize("says", ["nothing", "what is no receipt"])
async def test_a_receiver_that_sends_no_receipt_is_refused(says: str) -> None:
    async with receiver() as asking:
        await asking.ask()
        if says != "nothing":
            await asking.call.write(model_pb2.FetchRequest(model_id="m"))
        await asking.call.done_writing()
        code, why = await asking.ended()
    assert (code, why) == (grpc.StatusCode.ABORTED, "bad_stream: no receipt came for what was sent")
    assert not windows._spare  # who knows who reads it


async def test_a_receiver_that_refuses_what_it_had_opened_is_refused() -> None:
    async with receiver() as asking:
        await asking.ask()
        for refused_it in (False, True, True):
            await asking.call.write(model_pb2.FetchRequest(receipt=model_pb2.Receipt(refused=refused_it)))
        await asking.call.done_writing()
        code, why = await asking.ended()
    assert code is grpc.StatusCode.ABORTED
    assert "refused a window that it had opened" in why
    assert not windows._spare


class Takes(model_pb2_grpc.ModelServiceServicer):
    """Answers an upload with these bytes, and then ends or says nothing more."""

    def __init__(self, answers: list[bytes], then: str) -> None:
        self.answers, self.then = answers, then

    def Fetch(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        raise AssertionError("nothing is fetched here")

    async def Upload(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        for answer in self.answers:
            yield answer
        async for _ in requests:
            pass
        if self.then == "silence":
            await asyncio.Event().wait()


def taking(answers: list[bytes], then: str) -> Any:
    servicer = Takes(answers, then)
    handler = grpc.stream_stream_rpc_method_handler(servicer.Upload)
    return serving(
        lambda server: server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("fedgsp.v1.ModelService", {"Upload": handler}),)
        )
    )


TAKEN, SIGN = (model_pb2.Receipt(waiting=sign).SerializeToString() for sign in (False, True))
SLOTS_OF_LARGE = -(-LARGE.buffer.nbytes // SLOT_BYTES)


@pytest.mark.parametrize(
    ("answers", "code", "why"),
    [
        ([b"\xff\xff"], FailureCode.BAD_STREAM, "sent a message that is not a receipt"),
        ([TAKEN] * (SLOTS_OF_LARGE + 4), FailureCode.BAD_STREAM, "one receipt too many"),
        ([TAKEN, b"\x08\x01"], FailureCode.BAD_STREAM, "refused a window that it had opened"),
        ([], FailureCode.STALLED, "no receipt of model 'm'"),
        ([TAKEN] * 2, FailureCode.STALLED, "no receipt of model 'm'"),
        ([TAKEN] * 2 + [SIGN] * 100, FailureCode.STALLED, "no receipt of model 'm'"),
        (
            [SIGN, TAKEN] * (SLOTS_OF_LARGE + 1),
            FailureCode.UNREACHABLE,
            "confirmed all bytes, and did not end the call",
        ),
    ],
)
async def test_an_upload_ends_with_a_reason_whatever_its_receiver_answers(
    answers: list[bytes], code: FailureCode, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_streams, "CHUNK_TIMEOUT_S", 0.5)
    async with taking(answers, "silence") as served:
        failure = await refused(upload(served.channel, "m", LARGE, receiver=windows.machine()))
    assert failure.code is code
    assert why in failure.detail


async def test_an_upload_that_is_refused_half_way_says_why() -> None:
    spoilt = some_weights(7, vector(ELEMENTS))
    spoilt.buffer[-SLOT_BYTES:].view(np.float32)[:] = np.nan
    async with serving_store(ModelStore(), may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        failure = await refused(upload(served.channel, "m", unknown(spoilt), receiver=windows.machine()))
    assert failure.code is FailureCode.BAD_STREAM
    assert "holds NaN or infinite values" in failure.detail


async def test_uploads_that_are_refused_say_why_even_through_a_window() -> None:
    async with serving_store(ModelStore(), may_upload=lambda _: False, max_bytes=lambda: PLENTY) as served:
        failure = await refused(upload(served.channel, "m", LARGE, receiver=windows.machine()))
    assert failure.code is FailureCode.BAD_STREAM
    assert "was not asked for" in failure.detail


async def test_a_holder_whose_receiver_takes_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts that cannot be sent are waited for no longer than chunks that do not come."""
    monkeypatch.setattr(model_streams, "CHUNK_TIMEOUT_S", 0.05)
    window = a_window()
    messages = [offering(window.name).SerializeToString(), chunks.in_window(SLOT_BYTES)]

    async def stream() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    async def never(_: int | None) -> None:
        await asyncio.Event().wait()

    failure = await refused(model_streams.received(stream(), lambda _: None, PLENTY, lambda _: True, None, never))
    assert failure.code is FailureCode.STALLED


async def answer_to(*said: model_pb2.Chunk) -> Any:
    async with serving(registered(Says(said, then="silence"))) as served:
        return await refused(fetch(served.channel, "m", None, PLENTY))


@pytest.mark.parametrize("size", [0, SLOT_BYTES + 1, 2**32 - 1])
async def test_no_more_is_read_than_a_slot_holds(size: int) -> None:
    window = a_window()
    failure = await answer_to(offering(window.name), model_pb2.Chunk(in_window=size))
    assert failure.code is FailureCode.BAD_STREAM
    assert "cannot be in a slot" in failure.detail


async def test_what_is_in_no_window_is_refused() -> None:
    failure = await answer_to(offering(""), model_pb2.Chunk(in_window=8))
    assert failure.code is FailureCode.BAD_STREAM
    assert "no window is open" in failure.detail


async def test_more_than_was_announced_is_refused_from_a_window_too() -> None:
    window = a_window()
    failure = await answer_to(offering(window.name), *(model_pb2.Chunk(in_window=SLOT_BYTES) for _ in range(6)))
    assert failure.code is FailureCode.TOO_LONG


async def test_what_changes_after_it_was_hashed_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    put = chunks.in_window

    def and_then_change(size: int) -> bytes:
        (window,) = windows._made
        window.slot(0)[:4] = b"\0\0\0\1"
        return put(size)

    monkeypatch.setattr(chunks, "in_window", and_then_change)
    store = ModelStore()
    store.put("m", unknown(LARGE))
    async with serving_store(store) as served:
        failure = await refused(fetch(served.channel, "m", None, PLENTY))
    assert failure.code is FailureCode.WRONG_DIGEST
