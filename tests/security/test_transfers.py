"""One ticket is good for one transfer: it neither fills the memory of a holder nor keeps a model that is released."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import grpc
import pytest

from fedgsp.tensors.memory import room
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import model_service
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import model_pb2, model_pb2_grpc
from tests.support.callers import Anybody, Open
from tests.support.fuzzing import until
from tests.support.holders import BYTES, PLENTY, WEIGHTS, data, digest, header, serving_store
from tests.support.serving import serving
from tests.support.weights import some_weights, vector

#: Larger than what HTTP/2 and gRPC keep on the way to a reader who takes nothing.
LARGE = 8_000_000
CALLS = 20


class Holder(Anybody):
    """A caller with one ticket."""

    @property
    def asks(self) -> str:
        return "m"


class Rooms:
    """Counts the rooms for models that are in use."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []

    def __call__(self, size: int) -> Any:
        found = room(size)
        self.made.append(weakref.ref(found))
        return found

    @property
    def used(self) -> int:
        gc.collect(0)
        return sum(one() is not None for one in self.made)


async def begun(stub: model_pb2_grpc.ModelServiceStub) -> Any:
    """An upload of which the half has come."""
    call: Any = stub.Upload()
    await call.write(header())
    await call.write(data(BYTES[:20]))
    return call


async def test_a_new_upload_of_a_model_ends_the_one_before() -> None:
    store, rooms = ModelStore(), Rooms()
    servicer = ModelServicer(store, may_upload="m".__eq__, max_bytes=lambda: PLENTY, make_room=rooms)
    async with serving(servicer.add_to, access=Open(Holder(None, None))) as served:
        stub = model_pb2_grpc.ModelServiceStub(served.channel)
        calls = []
        for number in range(CALLS):
            calls.append(await begun(stub))
            await until(lambda number=number: len(rooms.made) == number + 1)  # type: ignore[misc]
        await until(lambda: rooms.used == 1)
        for part in (data(BYTES[20:]), digest()):
            await calls[-1].write(part)
        await calls[-1].done_writing()
        assert await calls[-1].code() is grpc.StatusCode.OK
        assert "m" in store
        for call in calls:
            call.cancel()


async def test_an_upload_that_nobody_waits_for_any_more_ends_with_its_next_chunk() -> None:
    expected, rooms, store = {"m"}, Rooms(), ModelStore()
    allowed = {"may_upload": expected.__contains__, "max_bytes": lambda: PLENTY, "make_room": rooms}
    async with serving_store(store, **allowed) as served:
        call = await begun(model_pb2_grpc.ModelServiceStub(served.channel))
        await until(lambda: rooms.used == 1)
        expected.clear()
        await call.write(data(BYTES[20:24]))
        assert await call.code() is grpc.StatusCode.ABORTED
        assert "is not wanted any more" in await call.details()


async def asked(channel: grpc.aio.Channel) -> Any:
    """A fetch whose reader takes nothing but the first message."""
    call: Any = model_pb2_grpc.ModelServiceStub(channel).Fetch()
    await call.write(model_pb2.FetchRequest(model_id="m"))
    assert (await call.read()).HasField("header")
    return call


def large() -> Weights:
    return some_weights(tensors=vector(LARGE // 4))


@pytest.mark.parametrize("released", [True, False], ids=["released", "held"])
async def test_a_reader_that_takes_nothing_loses_the_model(monkeypatch: pytest.MonkeyPatch, released: bool) -> None:
    monkeypatch.setattr(model_service, "TAKE_TIMEOUT_S", 0.2)
    store, weights = ModelStore(), large()
    store.put("m", weights)
    alive = weakref.ref(weights)
    servicer = ModelServicer(store)
    async with serving(servicer.add_to) as served:
        call = await asked(served.channel)
        if released:
            store.release(["m"])
            del weights
            await until(lambda: bool(gc.collect(0) + 1) and alive() is None)
        else:
            await until(lambda: not servicer._fetches._open)
        call.cancel()


async def test_a_reader_cannot_hold_a_released_model_by_taking_it_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_service, "TAKE_TIMEOUT_S", 0.5)
    store, weights = ModelStore(), large()
    store.put("m", weights)
    alive = weakref.ref(weights)
    async with serving_store(store) as served:
        call = await asked(served.channel)
        store.release(["m"])
        del weights
        begin = asyncio.get_running_loop().time()
        while alive() is not None:
            assert asyncio.get_running_loop().time() < begin + 5
            async with asyncio.timeout(5):
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the call ends at last
                    await call.read()  # as fast as the test needs to look: it never gets all
                    await call.write(model_pb2.FetchRequest(receipt=model_pb2.Receipt()))
            await asyncio.sleep(0.1)
            gc.collect(0)
        call.cancel()


async def test_more_fetches_of_one_model_end_the_oldest_with_a_reason() -> None:
    store = ModelStore()  # the model is a promise, for which all of them wait
    async with serving_store(store) as served, asyncio.timeout(30):
        stub = model_pb2_grpc.ModelServiceStub(served.channel)
        calls: list[Any] = [stub.Fetch() for _ in range(CALLS)]
        for call in calls:
            await call.write(model_pb2.FetchRequest(model_id="m"))
        await until(lambda: sum(call.done() for call in calls) == CALLS - model_service.MOST_FETCHES)
        for call in calls:
            if call.done():
                assert await call.code() is grpc.StatusCode.ABORTED
                assert await call.details() == "newer calls for the same thing have come"
        store.put("m", WEIGHTS)
        for call in calls:
            if not call.done():
                assert (await call.read()).HasField("header")
            call.cancel()
