"""The receiver of a model says that it is there, also while no chunk comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import ModelHeader, ModelRef
from fedgsp.transfers import answers
from fedgsp.transfers.answers import Answers
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import model_pb2
from tests.support.holders import BYTES, PLENTY, WEIGHTS, Says, data, digest, header, registered, serving_store
from tests.support.serving import serving
from tests.support.weights import TENSORS

RECEIPT, SIGN = model_pb2.Receipt(), model_pb2.Receipt(waiting=True)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SIGN_S", 0.01)


async def ended(giver: Answers) -> asyncio.Task[None]:
    """What gives the signs, once it has ended."""
    assert giver._signs is not None
    await asyncio.wait([giver._signs])
    return giver._signs


async def said(call: Any) -> model_pb2.Receipt:
    """The next answer that is more than a sign of life."""
    while (answer := await call.read()).waiting:
        pass
    return answer


async def test_a_sender_hears_its_receiver_while_it_sends_nothing() -> None:
    store = ModelStore()
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        call = served.channel.stream_stream(
            "/fedgsp.v1.ModelService/Upload",
            model_pb2.Chunk.SerializeToString,
            model_pb2.Receipt.FromString,
        )(timeout=20)
        await call.write(
            model_pb2.Chunk(header=wire.encode(ModelHeader(ModelRef("m", len(BYTES)), TENSORS, paced=True)))
        )
        assert [await call.read() for _ in range(3)] == [SIGN] * 3
        await call.write(data(BYTES[:8]))
        assert (await said(call), await call.read()) == (RECEIPT, SIGN)
        await call.write(data(BYTES[8:]))
        await call.write(digest())
        await call.done_writing()
        rest = []
        while (answer := await call.read()) is not grpc.aio.EOF:
            rest.append(answer)
        assert await call.code() is grpc.StatusCode.OK
    assert [answer for answer in rest if not answer.waiting] == [RECEIPT]
    assert store.held("m").digest == WEIGHTS.digest


class Hears(Says):
    """Sends the header of a model, and its bytes when it has heard from its reader three times."""

    def __init__(self) -> None:
        super().__init__([])

    async def Fetch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await anext(requests)
        start = header()
        start.header.paced = True
        yield start
        self.chunks = [(await anext(requests)).receipt for _ in range(3)]
        yield data(BYTES[:8])
        yield data(BYTES[8:])
        yield digest()
        for _ in range(2):
            while (await anext(requests)).receipt.waiting:
                pass


async def test_a_holder_hears_its_reader_while_it_sends_nothing() -> None:
    holder = Hears()
    async with serving(registered(holder)) as served:
        assert (await fetch(served.channel, "m", TENSORS, PLENTY)).digest == WEIGHTS.digest
    assert holder.chunks == [SIGN] * 3


async def test_signs_come_from_the_header_to_the_end() -> None:
    came: asyncio.Queue[model_pb2.Receipt] = asyncio.Queue()
    ours = Answers(came.put)
    await ours.receipt(None)
    assert ours._signs is None
    ours.begin()
    ours.begin()
    assert [await came.get() for _ in range(3)] == [model_pb2.Receipt(refused=True), SIGN, SIGN]
    ours.close()
    assert (await ended(ours)).cancelled()
    assert came.empty()


async def test_a_sign_that_is_being_written_at_the_end_is_not_broken_off() -> None:
    """gRPC ends a call if the writing of a message is cancelled."""
    begun, may_end, written = asyncio.Event(), asyncio.Event(), []

    async def write(message: model_pb2.Receipt) -> None:
        if message.waiting:
            begun.set()
            await may_end.wait()
        written.append(message)

    ours = Answers(write)
    ours.begin()
    await begun.wait()
    ours.close()
    may_end.set()
    assert not (await ended(ours)).cancelled()
    assert written == [SIGN]


@pytest.mark.parametrize("error", [asyncio.InvalidStateError, grpc.RpcError, grpc.aio.UsageError])
async def test_signs_end_with_the_call(error: type[Exception]) -> None:
    async def write(message: model_pb2.Receipt) -> None:
        if message.waiting:
            raise error

    ours = Answers(write)
    ours.begin()
    signs = await ended(ours)
    assert not signs.cancelled()
    assert signs.exception() is None
