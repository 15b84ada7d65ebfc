"""Managers that workers start: where they start, how they end, and who may start them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.errors import PeerError
from fedgsp.messages import (
    Admitted,
    Hosting,
    HostMessage,
    HostOrder,
    ManagerEnded,
    ManagerReady,
    StartManager,
    StopManager,
)
from fedgsp.v1 import hosting_pb2
from tests.support.fuzzing import ENDINGS, MOMENT_S, SOON_S, fuzzed, heard, path, said, say, soon, unharmed
from tests.support.serving import Served, serving
from top_server.managers import hosts
from top_server.managers.hosts import Hosts
from top_server.managers.servicer import HostingServicer
from top_server.nodes.callers import Placed

KEY = bytes(range(32))
WORKERS = [f"node-{number}" for number in (0, 1, 2, 3, 4, 5, 10)]
PLACED = Placed("run-1", dict.fromkeys(WORKERS))
HOST = path("HostingService", "Host")


async def greeted(_: str) -> None:
    """Whoever it is."""


def launcher(expected: int = 2, patience_s: float = SOON_S) -> Hosts:
    return Hosts(lambda: expected, KEY, lambda name: f"certificate of {name}".encode(), patience_s)


class Worker:
    """A worker that carries out what it is asked for; managers named in `broken` do not start."""

    def __init__(self, call: Any, broken: tuple[str, ...] = (), machine: str = "machine") -> None:
        self.call = call
        self.machine = machine
        self.broken = broken
        self.admitted = False
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.keys: set[bytes] = set()

    async def work(self) -> None:
        while (proto := await self.call.read()) is not grpc.aio.EOF:
            order = wire.decode(HostOrder, proto).kind
            if isinstance(order, StartManager):
                assert self.admitted
                self.started.append(order.manager)
                self.keys.add(order.run_key)
                assert order.certificate == f"certificate of {order.manager}".encode()
                ready = ManagerReady(order.manager, f"{self.machine}:{7000 + len(self.started)}", 17)
                await self.say(ManagerEnded(order.manager, "exit code 2") if order.manager in self.broken else ready)
            elif isinstance(order, Admitted):
                self.admitted = True
            elif isinstance(order, StopManager):
                self.stopped.append(order.manager)
                await self.say(ManagerEnded(order.manager, "exit code 143"))

    async def say(self, kind: Hosting | ManagerReady | ManagerEnded) -> None:
        await self.call.write(wire.encode(HostMessage(kind)))


@asynccontextmanager
async def working(
    served: Served, name: str, broken: tuple[str, ...] = (), machine: str = "machine"
) -> AsyncIterator[Worker]:
    host = served.channel.stream_stream(
        HOST, hosting_pb2.HostMessage.SerializeToString, hosting_pb2.HostOrder.FromString
    )
    worker = Worker(host(), broken, machine)
    await worker.say(Hosting(name, "run-1", machine))
    task = asyncio.create_task(worker.work())
    try:
        yield worker
    finally:
        worker.call.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def top_server(managers: Hosts) -> AsyncIterator[Served]:
    async with serving(HostingServicer(managers, PLACED, bytes).add_to) as served:
        yield served


async def test_managers_are_dealt_over_the_machines() -> None:
    managers = launcher()
    async with top_server(managers) as served, working(served, "node-0") as one, working(served, "node-1") as two:
        launched = [await soon(managers.launch(f"m{number}", greeted)) for number in range(4)]
        assert (len(one.started), len(two.started)) == (2, 2)
        assert one.keys == two.keys == {KEY}
        assert [found.node for found in launched] == ["node-0", "node-1", "node-0", "node-1"]
        assert all(found.hands_on and not found.process.over for found in launched)
        await soon(launched[0].process.end(1.0))
        assert launched[0].process.over == "exit code 143"
        assert (one.stopped, two.stopped) == (["m0"], [])
        assert (await soon(managers.launch("m4", greeted))).node == "node-0"  # it has one manager fewer


async def test_the_first_manager_waits_for_all_machines() -> None:
    managers = launcher()
    async with top_server(managers) as served, working(served, "node-1"):
        starting = asyncio.create_task(managers.launch("m0", greeted))
        async with working(served, "node-0") as first:
            assert (await soon(starting)).node == "node-0"
            assert first.started == ["m0"]


async def test_a_machine_that_is_lost_takes_its_managers_along() -> None:
    managers = launcher()
    async with top_server(managers) as served, working(served, "node-1"):
        async with working(served, "node-0"):
            lost = await soon(managers.launch("m0", greeted))
            assert lost.node == "node-0"
        await soon(lost.process.ended.wait())
        assert lost.process.over == "worker node-0 is gone"
        await soon(lost.process.end(1.0))
        assert (await soon(managers.launch("m1", greeted))).node == "node-1"


async def test_a_worker_that_connects_anew_has_no_managers() -> None:
    managers = launcher(expected=1)
    async with top_server(managers) as served, working(served, "node-0"):
        first = await soon(managers.launch("m0", greeted))
        async with working(served, "node-0") as again:
            await soon(first.process.ended.wait())
            assert first.process.over == "worker node-0 has connected anew"
            await soon(managers.launch("m1", greeted))
            assert again.started == ["m1"]


async def test_a_manager_that_does_not_start_is_told_with_its_machine() -> None:
    managers = launcher(expected=1)
    async with top_server(managers) as served, working(served, "node-0", broken=("m0",)):
        with pytest.raises(PeerError, match="m0 did not start on the machine of node-0: exit code 2") as caught:
            await soon(managers.launch("m0", greeted))
        assert "that of node-0" in caught.value.remedy
        assert (await soon(managers.launch("m1", greeted))).node == "node-0"


async def test_a_manager_that_does_not_start_on_one_machine_is_started_on_another() -> None:
    managers = launcher()
    async with (
        top_server(managers) as served,
        working(served, "node-0", broken=("m0", "m1")) as one,
        working(served, "node-1") as two,
    ):
        for number in range(3):
            assert (await soon(managers.launch(f"m{number}", greeted))).node == "node-1"
        assert one.started == ["m0"], "who has failed is asked last"
        assert two.started == ["m0", "m1", "m2"]


async def test_a_machine_that_is_lost_while_a_manager_starts_does_not_end_the_run() -> None:
    managers = launcher()
    async with top_server(managers) as served, working(served, "node-1") as two:
        silent = await managers.join("node-0", "machine")
        starting = asyncio.create_task(managers.launch("m0", greeted))
        assert isinstance(await soon(silent.outbox.get()), StartManager)
        managers.left(silent)
        assert (await soon(starting)).node == "node-1"
        assert two.started == ["m0"]


async def test_a_run_without_a_machine_that_starts_managers_ends_after_some_tries() -> None:
    managers = launcher(expected=6)
    broken = ("m0",)
    async with top_server(managers) as served, AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(working(served, f"node-{k}", broken)) for k in range(6)]
        with pytest.raises(PeerError, match="did not start on the machine of node-3"):
            await soon(managers.launch("m0", greeted))
        assert [len(worker.started) for worker in workers] == [1, 1, 1, 1, 0, 0]


async def test_managers_are_dealt_over_machines_and_then_over_their_workers() -> None:
    managers = launcher(expected=4)
    where = {"node-0": "first", "node-1": "first", "node-2": "second", "node-10": "second"}
    async with top_server(managers) as served, AsyncExitStack() as stack:
        for name, machine in where.items():
            await stack.enter_async_context(working(served, name, machine=machine))
        found = [(await soon(managers.launch(f"m{number}", greeted))).node for number in range(4)]
        assert found == ["node-0", "node-2", "node-1", "node-10"]


@pytest.mark.parametrize("address", ["elsewhere:7000", "0.0.0.0:7000", "nonsense", ""])
async def test_a_worker_can_name_no_other_machine(address: str) -> None:
    dialled: list[str] = []

    async def greet(address: str) -> None:
        dialled.append(address)

    managers = launcher(expected=1)
    async with top_server(managers):
        host = await managers.join("node-0", "machine")
        starting = asyncio.create_task(managers.launch("m0", greet))
        await soon(host.outbox.get())
        host.hear(ManagerReady("m0", address, 1))
        with pytest.raises(PeerError, match="did not start on the machine of node-0"):
            await soon(starting)
    assert not dialled


async def test_a_manager_that_is_somebody_else_is_ended() -> None:
    async def other(_: str) -> None:
        raise PeerError("it is another process")

    managers = launcher(expected=1)
    async with top_server(managers) as served, working(served, "node-0") as worker:
        with pytest.raises(PeerError, match="it is another process"):
            await soon(managers.launch("m0", other))
        assert worker.stopped == ["m0"]


async def test_a_worker_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "START_TIMEOUT_S", 0.05)
    monkeypatch.setattr(hosts, "END_TIMEOUT_S", 0.05)
    managers = launcher(expected=1)
    async with top_server(managers):
        await managers.join("node-0", "machine")
        with pytest.raises(PeerError, match="did not start on the machine of node-0"):
            await soon(managers.launch("m0", greeted))


async def test_without_a_worker_the_run_ends_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ALL_THERE_S", 0.02)
    with pytest.raises(PeerError, match="no worker was there") as caught:
        await soon(launcher(patience_s=0.02).launch("m0", greeted))
    assert "drop --place-managers" in caught.value.remedy


@pytest.mark.parametrize(("name", "run"), [("node-7", "run-1"), ("node-0", "run-2"), ("", "")])
async def test_who_is_no_worker_of_the_run_does_not_get_its_key(name: str, run: str) -> None:
    managers = launcher(expected=1, patience_s=0.02)
    async with top_server(managers) as served:
        call = served.channel.stream_stream(HOST)()
        answers, status = await heard(
            await say(call, [wire.encode(HostMessage(Hosting(name, run, "machine"))).SerializeToString()], "silence"),
            SOON_S,
        )
        assert (answers, status) == ([], grpc.StatusCode.PERMISSION_DENIED)


WORKER_SAYS = said(
    hosting_pb2.HostMessage,
    [wire.encode(HostMessage(kind)) for kind in (Hosting("node-0", "run-1", "h"), ManagerReady("m0", "h:1", 1))],
    ("node-0", "run-1", "m0", "127.0.0.1:1"),
)


@fuzzed(20)
@given(streams=st.lists(st.tuples(st.lists(WORKER_SAYS, max_size=4), ENDINGS), min_size=1, max_size=4))
async def test_whatever_workers_say_the_next_one_is_served(streams: list[tuple[list[bytes], str]]) -> None:
    managers = launcher(expected=1)
    async with unharmed(), top_server(managers) as served:
        for messages, ending in streams:
            call = await say(served.channel.stream_stream(HOST)(), messages, ending)
            await heard(call, MOMENT_S, first_s=MOMENT_S)
            with contextlib.suppress(grpc.aio.UsageError):
                call.cancel()
        async with working(served, "node-1") as last:
            while True:  # a stream that was said to be a worker may not have ended yet
                launched = await soon(managers.launch("m9", greeted))
                if launched.node == "node-1":
                    break
            assert last.started == ["m9"]
