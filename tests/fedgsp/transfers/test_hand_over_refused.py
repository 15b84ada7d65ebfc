"""Peers that say of a pipe what is not so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import pytest

from fedgsp.connections import channels
from fedgsp.messages import FailureCode, ModelHeader
from fedgsp.transfers import chunks, model_streams, piped, pipes, stalls
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.piped import until_readable
from fedgsp.transfers.pipes import PIPE_BYTES
from fedgsp.v1 import model_pb2, model_pb2_grpc
from tests.support.handed_over import ELEMENTS, LARGE, an_outlet, offering, put, taken, unknown
from tests.support.holders import PLENTY, Says, refused, registered, serving_store
from tests.support.serving import serving
from tests.support.weights import some_weights, vector

pytestmark = pytest.mark.skipif(not pipes.machine(), reason="no pipes of this kind on this system")


class Receiver:
    """Asks for LARGE and then says what it is told to, whatever comes."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def ask(self) -> Any:
        await self.call.write(model_pb2.FetchRequest(model_id="m", machine=pipes.machine()))
        header = (await self.call.read()).header
        assert header.pipe
        return header

    async def says(self, refused_it: bool) -> None:
        await self.call.write(model_pb2.FetchRequest(receipt=model_pb2.Receipt(refused=refused_it)))

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
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.05)
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


async def test_a_receiver_that_refuses_what_it_had_opened_is_refused() -> None:
    async with receiver() as asking:
        inlet = pipes.opened((await asking.ask()).pipe)
        await asking.says(refused_it=False)
        await taken(inlet, LARGE.buffer.nbytes)
        await asking.says(refused_it=True)
        code, why = await asking.ended()
        inlet.close()
    assert code is grpc.StatusCode.ABORTED
    assert "closed or refused a pipe that it had opened" in why


async def test_a_receiver_that_says_it_has_what_it_did_not_take_is_refused() -> None:
    async with receiver() as asking:
        inlet = pipes.opened((await asking.ask()).pipe)
        await asking.says(refused_it=False)
        await until_readable(inlet.descriptor)
        inlet.close()
        await asking.says(refused_it=False)
        code, why = await asking.ended()
    assert code is grpc.StatusCode.ABORTED
    assert "closed or refused a pipe that it had opened" in why


async def test_a_receiver_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(channels, "HEAR_OUT_S", 0.05)
    async with receiver() as asking:
        with contextlib.closing(pipes.opened((await asking.ask()).pipe)):
            await asking.says(refused_it=False)
            code, why = await asking.ended()
    assert (code, why) == (grpc.StatusCode.ABORTED, "stalled: no room in the pipe of model 'm' for 0 s")


class Takes(model_pb2_grpc.ModelServiceServicer):
    """Answers an upload with these messages, and then says nothing more. It may take what is in the pipe."""

    def __init__(self, answers: list[bytes], takes: bool) -> None:
        self.answers, self.takes = answers, takes

    def Fetch(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        raise AssertionError("nothing is fetched here")

    async def Upload(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        messages, answers = aiter(requests), iter(self.answers)
        header = chunks.read(await anext(messages))
        assert isinstance(header, ModelHeader)
        if self.takes:
            with contextlib.closing(pipes.opened(header.pipe)) as inlet:
                yield next(answers)
                await taken(inlet, LARGE.buffer.nbytes)
        for answer in answers:
            yield answer
        async for _ in messages:
            pass
        await asyncio.Event().wait()


def taking(answers: list[bytes], takes: bool) -> Any:
    servicer = Takes(answers, takes)
    handler = grpc.stream_stream_rpc_method_handler(servicer.Upload)
    return serving(
        lambda server: server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("fedgsp.v1.ModelService", {"Upload": handler}),)
        )
    )


TAKEN, SIGN = (model_pb2.Receipt(waiting=sign).SerializeToString() for sign in (False, True))
REFUSED = model_pb2.Receipt(refused=True).SerializeToString()


@pytest.mark.parametrize(
    ("answers", "takes", "code", "why"),
    [
        ([b"\xff\xff"], False, FailureCode.BAD_STREAM, "sent a message that is not a receipt"),
        ([TAKEN, TAKEN], False, FailureCode.BAD_STREAM, "closed or refused a pipe that it had opened"),
        ([TAKEN, REFUSED], True, FailureCode.BAD_STREAM, "closed or refused a pipe that it had opened"),
        ([TAKEN, TAKEN, TAKEN], True, FailureCode.BAD_STREAM, "one receipt too many"),
        ([], False, FailureCode.STALLED, "no receipt of model 'm'"),
        ([TAKEN], False, FailureCode.STALLED, "no receipt of model 'm'"),
        ([TAKEN], True, FailureCode.STALLED, "no receipt of model 'm'"),
        ([TAKEN] + [SIGN] * 100, True, FailureCode.STALLED, "no receipt of model 'm'"),
        ([TAKEN, SIGN, TAKEN], True, FailureCode.UNREACHABLE, "confirmed all bytes, and did not end the call"),
    ],
)
async def test_an_upload_ends_with_a_reason_whatever_its_receiver_answers(
    answers: list[bytes], takes: bool, code: FailureCode, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.5 if code is FailureCode.STALLED else 2.0)
    async with taking(answers, takes) as served:
        failure = await refused(upload(served.channel, "m", unknown(LARGE), receiver=pipes.machine()))
    assert failure.code is code
    assert why in failure.detail


async def test_an_upload_that_is_refused_half_way_says_why() -> None:
    spoilt = some_weights(7, vector(ELEMENTS))
    spoilt.buffer[-PIPE_BYTES:].view(np.float32)[:] = np.nan
    async with serving_store(ModelStore(), may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        failure = await refused(upload(served.channel, "m", unknown(spoilt), receiver=pipes.machine()))
    assert failure.code is FailureCode.BAD_STREAM
    assert "holds NaN or infinite values" in failure.detail


async def test_uploads_that_are_refused_say_why_even_through_a_pipe() -> None:
    async with serving_store(ModelStore(), may_upload=lambda _: False, max_bytes=lambda: PLENTY) as served:
        failure = await refused(upload(served.channel, "m", LARGE, receiver=pipes.machine()))
    assert failure.code is FailureCode.BAD_STREAM
    assert "was not asked for" in failure.detail


async def test_a_holder_whose_receiver_takes_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts that cannot be sent are waited for no longer than chunks that do not come."""
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.05)

    async def never(_: int | None) -> None:
        await asyncio.Event().wait()

    async def stream() -> AsyncIterator[bytes]:
        yield offering(outlet.name).SerializeToString()

    with contextlib.closing(an_outlet()) as outlet:
        failure = await refused(model_streams.received(stream(), lambda _: None, PLENTY, lambda _: True, None, never))
    assert failure.code is FailureCode.STALLED


async def answer_to(name: str, *said: model_pb2.Chunk) -> Any:
    async with serving(registered(Says((offering(name), *said), then="silence"))) as served:
        return await refused(fetch(served.channel, "m", None, PLENTY))


DIGEST = model_pb2.Chunk(digest=LARGE.digest)


@pytest.mark.parametrize(
    ("size", "said", "code", "why"),
    [
        (0, (DIGEST,), FailureCode.CUT_SHORT, "0 of"),
        (LARGE.buffer.nbytes - 1, (DIGEST,), FailureCode.CUT_SHORT, f"{LARGE.buffer.nbytes - 1} of"),
        (LARGE.buffer.nbytes, (model_pb2.Chunk(digest=bytes(32)),), FailureCode.WRONG_DIGEST, "announced digest"),
        (LARGE.buffer.nbytes, (model_pb2.Chunk(data=b"12345678"), DIGEST), FailureCode.BAD_STREAM, "in a message"),
        (8, (model_pb2.Chunk(data=bytes(LARGE.buffer[8:16])), DIGEST), FailureCode.BAD_STREAM, "in a message"),
        (8, (model_pb2.Chunk(), DIGEST), FailureCode.BAD_STREAM, "holds no bytes"),
    ],
)
async def test_what_does_not_come_as_announced_is_refused(
    size: int, said: tuple[model_pb2.Chunk, ...], code: FailureCode, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, was_opened = pipes.opened, asyncio.Event()

    def opened(name: str) -> pipes.Inlet:
        was_opened.set()
        return kept(name)

    async def put_some() -> None:
        await put(outlet, LARGE.buffer[:size])
        await was_opened.wait()
        outlet.close()

    monkeypatch.setattr(pipes, "opened", opened)
    outlet = an_outlet()
    _, failure = await asyncio.gather(put_some(), answer_to(outlet.name, *said))
    assert failure.code is code
    assert why in failure.detail


class Ends(model_pb2_grpc.ModelServiceServicer):
    """Opens or offers a pipe, keeps its end open, and ends the call when the other end has opened it."""

    def __init__(self, outlet: pipes.Outlet) -> None:
        self.outlet, self.ends = outlet, contextlib.ExitStack()

    async def Fetch(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await anext(requests)
        yield offering(self.outlet.name)
        await anext(requests)
        await context.abort(grpc.StatusCode.ABORTED, "the reason")

    async def Upload(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        header = await anext(requests)
        self.ends.callback(pipes.opened(header.header.pipe).close)
        yield model_pb2.Receipt()
        await context.abort(grpc.StatusCode.ABORTED, "the reason")


@pytest.mark.parametrize("direction", ["fetch", "upload"])
async def test_a_call_that_ends_is_not_waited_for_at_the_pipe(direction: str) -> None:
    """gRPC watches the connection, and nobody the pipe: a frozen process keeps its end open."""
    with contextlib.closing(an_outlet()) as outlet:
        ends = Ends(outlet)
        with ends.ends:
            async with serving(registered(ends)) as served:
                call = (
                    fetch(served.channel, "m", None, PLENTY)
                    if direction == "fetch"
                    else upload(served.channel, "m", LARGE, receiver=pipes.machine())
                )
                failure = await refused(call)
    assert failure.code is FailureCode.UNREACHABLE
    assert "the reason" in failure.detail


async def test_memory_that_the_system_does_not_put_into_a_pipe_is_no_ones_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cannot(*_: Any) -> int:
        raise OSError(12, "cannot allocate memory")

    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        assert pipes.machine()
        monkeypatch.setattr(pipes.Outlet, "put", cannot)
        failure = await refused(upload(served.channel, "n", LARGE, receiver=pipes.machine()))
        assert failure.code is FailureCode.NO_ROOM
        assert "cannot be put into a pipe: cannot allocate memory" in failure.detail
        failure = await refused(fetch(served.channel, "m", None, PLENTY))
        assert failure.code is FailureCode.UNREACHABLE
        assert "cannot be put into a pipe" in failure.detail


async def test_a_sender_that_puts_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "CHUNK_TIMEOUT_S", 0.05)
    with contextlib.closing(an_outlet()) as outlet:
        failure = await answer_to(outlet.name, DIGEST)
    assert failure.code is FailureCode.STALLED


async def test_what_is_said_to_be_bfloat16_must_be() -> None:
    """Otherwise a later receiver would get other bits."""
    store, lies = ModelStore(), some_weights(7, vector(ELEMENTS))
    lies.buffer[:4].view(np.float32)[:] = 1 / 3
    lies.bfloat16 = True
    store.put("m", lies)
    async with serving_store(store) as served:
        failure = await refused(fetch(served.channel, "m", None, PLENTY))
    assert failure.code is FailureCode.BAD_STREAM
    assert "said to hold bfloat16" in failure.detail


async def test_what_changes_after_it_was_hashed_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    put_as_it_is, weights = pipes.Outlet.put, some_weights(7, vector(ELEMENTS))
    assert weights.digest

    def change_and_put(outlet: pipes.Outlet, part: Any) -> int:
        weights.buffer[:4] = (0, 0, 0, 1)
        return put_as_it_is(outlet, part)

    monkeypatch.setattr(pipes.Outlet, "put", change_and_put)
    store = ModelStore()
    store.put("m", weights)
    async with serving_store(store) as served:
        failure = await refused(fetch(served.channel, "m", None, PLENTY))
    assert failure.code is FailureCode.WRONG_DIGEST


async def test_a_model_whose_receiver_has_no_disk_is_not_blamed_on_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(piped, "reserve", full)
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        failure = await refused(fetch(served.channel, "m", None, PLENTY))
    assert failure.code is FailureCode.NO_ROOM
