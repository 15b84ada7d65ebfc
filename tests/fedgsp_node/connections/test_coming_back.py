"""A node whose link to its group manager is cut while it works: real streams, a real manager, and a link to cut."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from torch import nn

from fedgsp.connections.channels import Channels
from fedgsp.identity import manager as manager_of
from fedgsp.identity import node as node_of
from fedgsp.messages import (
    AttachTo,
    Failure,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    OrderKey,
    RelayMode,
    RunGroupRequest,
    TrainingSettings,
)
from fedgsp.security.tickets import Door
from fedgsp.settings.managers import ManagerSettings
from fedgsp.settings.run import NodeSettings
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.clients import Clients
from fedgsp_node.connections import managers
from fedgsp_node.connections.attachment import OrderLog
from fedgsp_node.connections.managers import REDIALS, Managers, is_gone, pause_s
from fedgsp_node.fetching import Fetcher
from fedgsp_node.receipts import Receipts
from fedgsp_node.running import Running, is_superseded
from fedgsp_node.server import patience_s
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager import server as manager_server
from group_manager.members import Members
from group_manager.server import serving
from group_manager.sessions import Session
from tests.support.blobs_task import Blobs
from tests.support.callers import ISSUER, attach_ticket
from tests.support.links import Link, link
from tests.support.serving import nobody
from tests.support.serving import serving as served_by
from top_server.doors import models_of
from top_server.managers.client import BrokenOff, ManagerClient

LOST_AFTER_S = 1.0
SETTINGS = TrainingSettings("sgd", 1, 50, 0.05, seed=3)


class Even(Blobs):
    """Without dropout: nodes in threads of one process share the random numbers of torch."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


START = Clients(Even(), None).initial_weights(0)


@dataclass
class Gate:
    """Training waits here. The event is set when it has begun."""

    open: threading.Event = field(default_factory=threading.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    times: int = 0

    def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self.times += 1
        loop.call_soon_threadsafe(self.reached.set)
        self.open.wait(30)


class Watched(Members):
    """Tells when a node is away, and when it counts as gone."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.away, self.gone = asyncio.Event(), asyncio.Event()

    async def detach(self, *arguments: Any) -> None:
        await super().detach(*arguments)
        self.away.set()

    def _expire(self, session: Session, breaks: int) -> None:
        super()._expire(session, breaks)
        if not self.attached(session.node):
            self.gone.set()


@dataclass
class Group:
    """A manager that plays a group, and what it tells."""

    address: str
    client: ManagerClient
    start_address: str
    members: Watched
    events: list[Any] = field(default_factory=list)

    async def run(self, program: str, **nodes: int) -> GroupResult | Failure:
        clients = Clients(Even(), None)
        members = tuple(
            Member(client, node, "", clients.train_samples(client), None, 1.0) for node, client in nodes.items()
        )
        request = RunGroupRequest(
            *("run", 1, 0, program, members, START.ref("start"), self.start_address, RelayMode.MANAGER),
            *(False, SETTINGS, 20.0, 1 << 22),
        )

        def note(event: GroupEvent) -> None:
            self.events.append(event.kind)

        ended = await self.client.run_group(request, note)
        assert not isinstance(ended, BrokenOff)
        return ended

    @property
    def skipped(self) -> list[int]:
        return [event.client for event in self.events if isinstance(event, MemberSkipped)]

    @property
    def done(self) -> list[int]:
        return [event.client for event in self.events if isinstance(event, MemberDone)]


@asynccontextmanager
async def group() -> AsyncIterator[Group]:
    top, made = ModelStore(), list[Watched]()
    top.put("start", START)

    def members(*arguments: Any) -> Watched:
        made.append(Watched(*arguments))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager_server, "Members", members)
        async with _group(top, made) as found:
            yield found


@asynccontextmanager
async def _group(top: ModelStore, made: list[Watched]) -> AsyncIterator[Group]:
    async with (
        serving(ManagerSettings(name="m0", run="run", lost_after=LOST_AFTER_S), ISSUER) as address,
        served_by(models_of(top).add_to) as served,
        Channels(lost_after_s=LOST_AFTER_S) as channels,
    ):
        dial = partial(channels.to, address, manager_of("m0"))
        yield Group(address, ManagerClient("m0", dial, ISSUER), served.address, made[0])


@asynccontextmanager
async def node(name: str, address: str, gate: Gate | None = None) -> AsyncIterator[Managers]:
    """A node that serves the manager at an address."""
    loop, store, slot = asyncio.get_running_loop(), ModelStore(), Slot()
    task = Even(on_loss=(lambda: gate.wait(loop)) if gate is not None else lambda: None)
    clients = Clients(task, None)
    async with Channels(lost_after_s=LOST_AFTER_S) as channels:
        worker = Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot)
        door, log = Door(ISSUER.key_of(node_of(name))), OrderLog()
        joined = asyncio.Event()
        joined.set()
        of_node = (name, f"process of {name}", "127.0.0.1", True)
        managers = Managers(*of_node, channels, worker, door, log, _no_receipts, joined)
        managers.attach("run", AttachTo("m0", address, attach_ticket(name)))
        try:
            yield managers
        finally:
            if gate is not None:
                gate.open.set()
            await managers.detach()
            slot.close()


def _no_receipts(_: object) -> Receipts:
    return Receipts()


Cut = Callable[[Group, Link, Gate], Any]


async def trained_by(program: str, cut: Cut | None) -> tuple[Group, Any, int]:
    """A group of two nodes; the link of the first one is cut as soon as its client trains."""
    gate, other = Gate(), Gate()
    async with group() as g, link(g.address) as way, contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(node("n0", way.address, gate))
        await stack.enter_async_context(node("n1", g.address, other))
        running = asyncio.create_task(g.run(program, n0=0, n1=1))
        await gate.reached.wait()
        if cut is None:
            gate.open.set()
        else:
            await cut(g, way, gate)
        other.open.set()
        result = await running
    return g, result, gate.times


async def reset(g: Group, way: Link, gate: Gate) -> None:
    """All connections end at once, and the training ends meanwhile."""
    way.cut()
    way.reset()
    gate.open.set()
    await g.members.away.wait()
    way.mend()


async def silence(g: Group, way: Link, gate: Gate) -> None:
    """Nothing passes for longer than a peer may be silent, so that both ends give the connection up."""
    way.cut()
    gate.open.set()
    await g.members.away.wait()
    way.mend()


async def test_a_link_that_works_is_needed_for_what_follows() -> None:
    g, result, times = await trained_by("relay", None)
    assert isinstance(result, GroupResult), result
    assert (g.done, g.skipped, times) == ([0, 1], [], 1)


@pytest.mark.parametrize("program", ["relay", "parallel"])
@pytest.mark.parametrize("cut", [reset, silence])
async def test_a_result_that_was_made_while_the_link_was_cut_is_delivered_and_the_client_trains_once(
    program: str, cut: Cut
) -> None:
    undisturbed, expected, _ = await trained_by(program, None)
    g, result, times = await trained_by(program, cut)
    assert isinstance(result, GroupResult), result
    assert isinstance(expected, GroupResult)
    assert (g.done, g.skipped, times) == ([0, 1], [], 1)
    assert result.ref == expected.ref
    assert undisturbed.done == [0, 1]


async def test_a_node_that_is_away_for_long_still_counts_while_others_train() -> None:
    async def long(g: Group, way: Link, gate: Gate) -> None:
        way.cut()
        gate.open.set()
        await g.members.gone.wait()
        way.mend()
        assert await g.members.wait_for({"n0"}, 20) == set()

    g, result, times = await trained_by("parallel", long)
    assert isinstance(result, GroupResult), result
    assert (g.done, g.skipped, times) == ([0, 1], [], 1)


async def test_a_node_that_stays_away_is_skipped_when_nobody_else_works() -> None:
    async def for_good(g: Group, way: Link, gate: Gate) -> None:
        way.cut()

    g, result, _ = await trained_by("parallel", for_good)
    assert isinstance(result, GroupResult), result
    assert (g.done, g.skipped) == ([1], [0])
    [why] = [event.failure for event in g.events if isinstance(event, MemberSkipped)]
    assert "node n0 is gone: its connection ended" in str(why)


async def test_no_middlebox_finds_a_connection_idle() -> None:
    async with group() as g, link(g.address, idle_s=0.7 * LOST_AFTER_S) as way:
        gate = Gate()
        async with node("n0", way.address, gate):
            running = asyncio.create_task(g.run("relay", n0=0))
            await gate.reached.wait()
            await way.passed(8)
            gate.open.set()
            result = await running
        assert isinstance(result, GroupResult), result
        assert way.forgotten == 0


async def test_a_manager_that_is_named_while_it_is_given_up_is_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers, "FIRST_RETRY_S", 0.001)
    leaving, go_on = asyncio.Event(), asyncio.Event()
    drop = Channels.drop

    async def slow(self: Channels, address: str, models: bool = True) -> None:
        if models:  # its last step
            leaving.set()
            await go_on.wait()
        await drop(self, address, models=models)

    async with group() as g, nobody() as gone:
        monkeypatch.setattr(Channels, "drop", slow)
        async with node("n0", gone.address) as served:
            await leaving.wait()
            served.attach("run", AttachTo("m0", g.address, attach_ticket("n0")))
            go_on.set()
            assert await g.members.wait_for({"n0"}, 20) == set()


async def test_a_manager_that_is_named_in_the_last_pause_before_it_is_given_up_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pausing, counts_anew = asyncio.Event(), asyncio.Event()
    pauses: list[float] = []

    async def pause(named: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == REDIALS:
            pausing.set()
            await named.wait()
        if len(pauses) == 2 * REDIALS:
            counts_anew.set()

    monkeypatch.setattr(managers, "_pause", pause)
    async with group() as g, nobody() as gone, node("n0", gone.address) as served:
        await pausing.wait()
        served.attach("run", AttachTo("m0", g.address, attach_ticket("n0")))
        await counts_anew.wait()


# --- decisions


@pytest.mark.parametrize("tries", range(3 * REDIALS))
def test_a_manager_is_given_up_only_while_the_top_server_can_be_reached(tries: int) -> None:
    assert not is_gone(tries, joined=False)
    assert is_gone(tries, joined=True) == (tries >= REDIALS)
    assert 0 < pause_s(tries) <= 5.0


@pytest.mark.parametrize(
    ("has_joined", "is_stopped", "seconds"), [(False, False, 7), (True, False, 90), (True, True, 7)]
)
def test_a_node_looks_longer_for_the_top_server_of_a_run_that_was_not_stopped(
    has_joined: bool, is_stopped: bool, seconds: float
) -> None:
    settings = NodeSettings(top_server="127.0.0.1:1", connect_timeout=7, return_timeout=90)
    assert patience_s(settings, has_joined, is_stopped) == seconds


async def test_orders_of_a_lost_manager_end_when_another_one_has_the_group() -> None:
    running = Running()
    older, newer = (OrderKey(1, "train", 0, 0, run="run", serial=serial) for serial in (1, 2))
    other = OrderKey(1, "train", 1, 0, run="run", serial=1)

    async def work() -> None:
        await asyncio.Event().wait()

    tasks = {key: asyncio.create_task(work()) for key in (older, other, newer)}
    for key, task in tasks.items():
        running.begin(key, task)
    await asyncio.wait([tasks[older]])
    assert [task.cancelled() for task in tasks.values()] == [True, False, False]
    assert is_superseded(older, newer)
    assert not is_superseded(newer, older)
    for task in tasks.values():
        task.cancel()
