"""A node that attaches again and again fills neither the log of the manager nor its time, and harms no other node."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import Attached, NodeReport
from fedgsp.seldom import INTERVAL_S
from fedgsp.v1 import order_pb2_grpc
from group_manager import comings, server
from group_manager.comings import MINUTE_S, Comings
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.fuzzing import until
from tests.support.serving import serving

TIMES = 30


class Door:
    """The order service of a manager, and nodes that attach to it and leave at once."""

    def __init__(self) -> None:
        self.time, self.members = 0.0, Members()
        self.servicer = OrderServicer(
            self.members, "m0", "run", _comings=Comings(logging.getLogger(server.__name__), lambda: self.time)
        )
        self.channel: grpc.aio.Channel

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with serving(
            lambda one: order_pb2_grpc.add_OrderServiceServicer_to_server(self.servicer, one)
        ) as served:
            self.channel = served.channel
            yield

    async def attach(self, node: str, manager: str = "m0") -> grpc.StatusCode:
        call = order_pb2_grpc.OrderServiceStub(self.channel).Attach()
        await call.write(wire.encode(NodeReport(Attached("run", node, manager))))
        await call.done_writing()
        async for _ in call:
            pass
        await until(lambda: not self.members.attached(node))
        return await call.code()


@pytest.fixture
async def door(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Door]:
    caplog.set_level("INFO")
    made = Door()
    async with made.open():
        yield made


async def refused(door: Door, node: str, manager: str = "m0") -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.attach(node, manager)
    return caught.value.code()


async def test_a_node_that_attaches_without_end_does_not_fill_the_log(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(TIMES):
        await door.attach("n1")
    await door.attach("n2")
    assert caplog.messages == [f"node={name} {what}" for name in ("n1", "n2") for what in ("attached", "left")]
    door.time += INTERVAL_S
    await door.attach("n1")
    assert caplog.messages[4:] == [
        f"node=n1 {what} ({TIMES - 1} other {kind}s since the last line)"
        for what, kind in (("attached", "attachment"), ("left", "departure"))
    ]


async def test_a_caller_that_is_refused_without_end_does_not_fill_the_log(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(TIMES):
        code = await refused(door, f"n{number}", f"m{number + 1}\n{'x' * 1000}")
        assert code is grpc.StatusCode.FAILED_PRECONDITION
    (line,) = caplog.messages
    assert line.startswith("node='n0' was refused: it looks for manager 'm1\\nxxx")
    assert len(line) < 300


async def test_a_node_may_attach_so_many_times_within_a_minute(
    door: Door, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comings, "MOST_ATTACHMENTS", TIMES)
    for _ in range(TIMES):
        assert await door.attach("n1") is grpc.StatusCode.OK
    for _ in range(TIMES):
        assert await refused(door, "n1") is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await door.attach("n2") is grpc.StatusCode.OK
    assert sum("was refused: it has attached 30 times" in line for line in caplog.messages) == 1
    door.time += MINUTE_S
    assert await door.attach("n1") is grpc.StatusCode.OK
