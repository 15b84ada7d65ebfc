from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fedgsp import wire
from fedgsp.connections import channels
from fedgsp.connections.channels import Channels, start_server
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import (
    Evaluated,
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    RelayMode,
    Release,
    Rerouted,
    RunGroupRequest,
    TrainingSettings,
)
from fedgsp.security.tls import load
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import enrolment_pb2, group_pb2, group_pb2_grpc
from tests.support.callers import ISSUER, OPEN, over, shown_by
from tests.support.certificates import Authority
from tests.support.serving import Served, nobody, serving
from tests.support.weights import TENSORS, some_weights
from top_server.managers.client import BrokenOff, ManagerClient

REQUEST = RunGroupRequest(
    run_id="run-1",
    round=3,
    group=1,
    program="relay",
    members=(Member(4, "n0", "127.0.0.1:7000", 20), Member(5, "n1")),
    start=ModelRef("run-1/2", 40, b"digest"),
    start_address="127.0.0.1:7001",
    relay=RelayMode.AUTO,
    shuffle=True,
    training=TrainingSettings("sgd", 1, 5, 0.1, 7, {"mu": "0.1"}),
    stall_timeout_s=60.0,
    max_model_bytes=40,
)
DONE = GroupEvent(MemberDone(4, 0, Evaluated(1, 2, 0.5)))
SKIPPED = GroupEvent(MemberSkipped(5, Failure(FailureCode.STALLED, "no progress")))
REROUTED = GroupEvent(Rerouted(4, "n0 cannot be dialled"))
RESULT = GroupResult(ModelRef("m", 40, b"digest"), 20, 40, 0)


class Manager(group_pb2_grpc.GroupServiceServicer):
    """Says these events to every group, and then ends its stream as told; forgets, or cannot."""

    def __init__(self, *events: GroupEvent, then: str = "end", forgets: bool = True) -> None:
        self.events = events
        self.then = then
        self.forgets = forgets
        self.asked: list[RunGroupRequest] = []
        self.forgotten: list[str] = []
        self.said, self.ended = asyncio.Event(), asyncio.Event()

    async def RunGroup(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append(wire.decode(RunGroupRequest, request))
        yield shown_by()
        try:
            for event in self.events:
                yield wire.encode(event)
            self.said.set()
            match self.then:
                case "silence":
                    await asyncio.Event().wait()
                case "break":
                    raise ZeroDivisionError
                case "cancel":
                    await context.abort(grpc.StatusCode.CANCELLED, "no time")
                case "full":
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        finally:
            self.ended.set()

    async def Forget(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.forgets:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        self.forgotten += wire.decode(Release, request).model_ids
        return group_pb2.ForgetResponse()

    async def Revoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.revoked = list(request.enrolments)
        return enrolment_pb2.RevokeResponse()


@asynccontextmanager
async def managed(
    manager: Manager, store: ModelStore | None = None, models: ModelServicer | None = None
) -> AsyncIterator[tuple[ManagerClient, Served]]:
    def register(server: grpc.aio.Server) -> None:
        group_pb2_grpc.add_GroupServiceServicer_to_server(manager, server)
        (models or ModelServicer(store or ModelStore())).add_to(server)

    async with serving(register) as served:
        yield ManagerClient("m0", over(served.channel), ISSUER), served


async def run(manager: Manager) -> tuple[GroupResult | Failure | BrokenOff, list[GroupEvent]]:
    heard: list[GroupEvent] = []
    async with managed(manager) as (client, _):
        return await client.run_group(REQUEST, heard.append), heard


async def test_a_group_is_run_to_its_result_and_what_happens_is_told() -> None:
    manager = Manager(DONE, SKIPPED, REROUTED, GroupEvent(RESULT))
    assert await run(manager) == (RESULT, [DONE, SKIPPED, REROUTED])
    assert manager.asked == [REQUEST]


async def test_a_group_that_gave_up_is_a_value() -> None:
    failure = Failure(FailureCode.NODE_LOST, "no member trained")
    assert await run(Manager(SKIPPED, GroupEvent(failure))) == (failure, [SKIPPED])


async def test_nothing_is_heard_after_the_result() -> None:
    manager = Manager(GroupEvent(RESULT), DONE, then="silence")
    assert await run(manager) == (RESULT, [])
    await manager.ended.wait()


async def test_an_event_of_an_unknown_kind_does_not_end_a_group() -> None:
    result, heard = await run(Manager(GroupEvent(None), DONE, GroupEvent(RESULT)))
    assert result == RESULT
    assert heard[-1] == DONE


async def test_a_stream_without_a_result_is_a_failure() -> None:
    result, heard = await run(Manager(DONE))
    assert result == Failure(FailureCode.BAD_STREAM, "manager m0 ended the group without a result")
    assert heard == [DONE]


@pytest.mark.parametrize(
    ("then", "said"), [("break", "UNKNOWN"), ("cancel", "CANCELLED: no time"), ("full", "RESOURCE_EXHAUSTED: full")]
)
@pytest.mark.parametrize("answers", [True, False])
async def test_a_manager_that_breaks_off_a_group_is_lost_only_if_it_does_not_answer(
    then: str, said: str, answers: bool
) -> None:
    result, heard = await run(Manager(DONE, then=then, forgets=answers))
    assert isinstance(result, BrokenOff)
    assert result.lost is not answers
    assert result.reason.code is FailureCode.UNREACHABLE
    assert result.reason.detail.startswith(f"manager m0: {said}")
    assert heard == [DONE]


async def test_a_manager_that_dies_in_the_middle_is_lost() -> None:
    manager = Manager(DONE, then="silence")
    async with managed(manager) as (client, served):
        task = asyncio.create_task(client.run_group(REQUEST, lambda _: None))
        await manager.said.wait()
        await served.server.stop(None)
        result = await task
    assert isinstance(result, BrokenOff)
    assert result.lost


async def test_a_call_whose_channel_is_closed_breaks_off_and_the_manager_is_asked_anew() -> None:
    """Another group may have found it lost: gRPC cancels calls that are on their way."""
    async with managed(Manager(then="silence")) as (_, served), Channels() as dialled:
        dial = functools.partial(dialled.to, served.address, TOP_SERVER)
        client = ManagerClient("m0", dial, ISSUER)
        await dial()
        group = asyncio.create_task(client.run_group(REQUEST, lambda _: None))
        told = asyncio.create_task(client.revoke(["urn:1"]))
        await asyncio.sleep(0)
        await dialled.drop(served.address)
        reason = Failure(FailureCode.UNREACHABLE, "manager m0: the connection was closed")
        assert await group == BrokenOff(reason, lost=False)
        assert not await told


async def test_models_come_by_the_channel_that_carries_models() -> None:
    store = ModelStore()
    store.put("m", some_weights())
    async with managed(Manager(), store) as (_, served):
        dialled: list[str] = []

        async def dial(what: str) -> grpc.aio.Channel:
            dialled.append(what)
            return served.channel

        client = ManagerClient(
            "m0", functools.partial(dial, "orders"), ISSUER, dial_models=functools.partial(dial, "models")
        )
        assert isinstance(await client.take(ModelRef("m"), TENSORS, 40), Weights)
        assert dialled == ["models", "orders"]


async def test_a_manager_that_is_not_there_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async with nobody() as served:
        client = ManagerClient("m0", over(served.channel), ISSUER)
        ended = await client.run_group(REQUEST, lambda _: None)
        assert isinstance(ended, BrokenOff)
        assert ended.lost
        taken = await client.take(ModelRef("m"), TENSORS, 40)
        assert isinstance(taken, BrokenOff)
        assert taken.lost
    assert "may still hold" not in caplog.text


async def test_a_manager_that_cannot_be_dialled_is_lost() -> None:
    async def dial() -> grpc.aio.Channel:
        raise PeerError("no TLS connection", "mend it")

    client = ManagerClient("m0", dial, ISSUER)
    reason = Failure(FailureCode.UNREACHABLE, "manager m0: no TLS connection; mend it")
    assert await client.run_group(REQUEST, lambda _: None) == BrokenOff(reason, lost=True)
    assert await client.take(ModelRef("m"), TENSORS, 40) == BrokenOff(reason, lost=True)
    assert not await client.revoke([])


async def test_an_idle_manager_is_reached_after_its_certificate_was_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is that of the top server, which renews it; the channel trusts the former certificate alone."""
    monkeypatch.setattr(channels, "FRESH_S", -1.0)
    authority = Authority(tmp_path)
    files, fresh = authority.issue("top"), authority.issue("renewed")
    tls, manager = load(files), Manager()
    register = functools.partial(group_pb2_grpc.add_GroupServiceServicer_to_server, manager)
    server, address = await start_server("127.0.0.1:0", [register], OPEN, tls)
    async with Channels(tls) as dialled:
        client = ManagerClient("m0", functools.partial(dialled.to, address, TOP_SERVER), ISSUER)
        assert await client.revoke([])
        shutil.copy(fresh.cert, files.cert)
        shutil.copy(fresh.key, files.key)
        channel = await dialled.to(address, TOP_SERVER)
        await server.stop(None)  # as if the connection had been idle for too long
        while (state := channel.get_state()) is grpc.ChannelConnectivity.READY:
            await asyncio.wait_for(channel.wait_for_state_change(state), 20)
        server, _ = await start_server(address, [register], OPEN, load(files))
        assert await client.revoke(["urn:1"])
        assert manager.revoked == ["urn:1"]
    await server.stop(None)


async def test_a_group_that_is_called_off_ends_at_its_manager_too() -> None:
    manager = Manager(DONE, then="silence")
    async with managed(manager) as (client, _):
        task = asyncio.create_task(client.run_group(REQUEST, lambda _: None))
        await manager.said.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await manager.ended.wait()


async def test_a_listener_that_fails_ends_the_group_at_its_manager_too() -> None:
    manager = Manager(DONE, then="silence")

    def listen(_: GroupEvent) -> None:
        raise ZeroDivisionError

    async with managed(manager) as (client, _):
        with pytest.raises(ZeroDivisionError):
            await client.run_group(REQUEST, listen)
        await manager.ended.wait()


async def test_a_model_that_was_taken_is_forgotten_by_its_manager() -> None:
    manager, store = Manager(), ModelStore()
    store.put("m", some_weights())
    async with managed(manager, store) as (client, _):
        taken = await client.take(ModelRef("m"), TENSORS, 40)
    assert isinstance(taken, Weights)
    assert taken.digest == some_weights().digest
    assert manager.forgotten == ["m"]


async def test_a_good_model_is_kept_although_its_manager_cannot_forget_it(caplog: pytest.LogCaptureFixture) -> None:
    store = ModelStore()
    store.put("m", some_weights())
    async with managed(Manager(forgets=False), store) as (client, _):
        assert isinstance(await client.take(ModelRef("m"), TENSORS, 40), Weights)
    assert "manager=m0 may still hold model=m: UNAVAILABLE" in caplog.text


@pytest.mark.parametrize(
    ("expected", "max_bytes", "code"),
    [
        (TENSORS, 40, FailureCode.NOT_FINITE),
        (TENSORS[:1], 40, FailureCode.WRONG_SHAPES),
        (TENSORS, 39, FailureCode.TOO_LONG),
    ],
)
async def test_a_model_that_is_refused_is_forgotten_too(expected: Any, max_bytes: int, code: FailureCode) -> None:
    manager, store, weights = Manager(), ModelStore(), some_weights()
    weights.arrays["w"][0, 0] = np.nan
    store.put("m", weights)
    async with managed(manager, store) as (client, _):
        taken = await client.take(ModelRef("m"), expected, max_bytes)
    assert isinstance(taken, Failure)
    assert taken.code is code
    assert manager.forgotten == ["m"]


class Breaking(ModelServicer):
    """Breaks off the first transfers."""

    def __init__(self, store: ModelStore, times: int) -> None:
        super().__init__(store)
        self.times = times

    async def Fetch(self, requests: Any, context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        if self.times > 0:
            self.times -= 1
            await context.abort(grpc.StatusCode.ABORTED, "newer calls for the same thing have come")
        async for chunk in super().Fetch(requests, context):
            yield chunk


@pytest.mark.parametrize(("times", "answers", "came"), [(1, True, True), (2, True, False), (1, False, False)])
async def test_a_transfer_that_breaks_off_is_tried_once_more_if_the_manager_answers(
    times: int, answers: bool, came: bool
) -> None:
    manager, store = Manager(forgets=answers), ModelStore()
    store.put("m", some_weights())
    async with managed(manager, store, Breaking(store, times)) as (client, _):
        taken = await client.take(ModelRef("m"), TENSORS, 40)
    assert isinstance(taken, Weights) is came
    assert not isinstance(taken, BrokenOff) or taken.lost is not answers
    assert manager.forgotten == (["m"] if answers else [])
