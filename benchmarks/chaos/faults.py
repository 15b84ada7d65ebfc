"""Injects faults: waits for the moment, hits the victims, and ends the fault after a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP

from benchmarks.chaos import disks
from benchmarks.chaos.events import Events, presence
from benchmarks.chaos.plan import Fault, Moment
from benchmarks.chaos.world import TOP_SERVER, World

#: A certificate expires after so many seconds.
EXPIRES_S = 2.0
#: Words in the log of a process that tell why it cannot go on, and how many seconds it has for that. A top server that
#: waits for its slowest node writes nothing for a while.
EXPIRED, FULL = "has expired", "No space left on device"
TOLD_S = 60.0


@dataclass(slots=True)
class Strike:
    """A fault that was injected: its victims, when it began, and when it ended."""

    fault: Fault
    victims: tuple[str, ...]
    at: float
    undone: float | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes among the victims."""
        return tuple(name for name in self.victims if name.startswith("n"))


async def strike(world: World, fault: Fault, strikes: list[Strike]) -> None:
    """Injects a fault at its moment. If cancelled, it ends the fault at once and starts no process again."""
    await world.events.until(lambda events: _come(events, fault.moment))
    await asyncio.sleep(fault.moment.delay_s)
    for number in range(fault.times):
        if number:
            await asyncio.sleep(fault.gap_s)
        if fault.kind == "expire":
            await _certificate_expires(world, fault)
        begin = time.time()
        async with STRIKES[fault.kind](world, fault) as victims:
            done = Strike(fault, victims, begin)
            if victims:
                strikes.append(done)
                await asyncio.sleep(fault.lasting_s)
        done.undone = time.time()


def _come(events: Events, moment: Moment) -> bool:
    if any(events.of_kind("round_finished", round=moment.round)):
        return True
    if not any(events.of_kind("round_started", round=moment.round)):
        return False
    return sum(1 for _ in events.of_kind("hop_finished", round=moment.round)) >= moment.hops


def _over(world: World) -> bool:
    world.events.look()
    return any(world.events.of_kind("run_finished"))


@contextlib.asynccontextmanager
async def _killed(world: World, fault: Fault) -> AsyncIterator[tuple[str, ...]]:
    if _over(world):
        yield ()
        return
    if fault.victim == "manager":
        managers = world.managers()
        names = sorted(managers)[fault.which % len(managers) :][:1] if managers else []
        for name in names:
            world.signal(managers[name], SIGKILL)
        yield tuple(names)  # the top server has another name
        return
    names = {"top server": [TOP_SERVER], "everything": [TOP_SERVER, *world.nodes], "node": [_node(world, fault)]}[
        fault.victim
    ]
    names = [name for name in names if world.lives(name)]
    await asyncio.gather(*(world.kill(name) for name in names))
    yield tuple(names)
    if _over(world):
        return
    for name in names:
        if name == TOP_SERVER:
            await world.start_top_server(resume=True)
        else:
            await world.start_node(name)


@contextlib.asynccontextmanager
async def _stopped(world: World, fault: Fault) -> AsyncIterator[tuple[str, ...]]:
    if fault.victim == "manager":
        managers = world.managers()
        name = sorted(managers)[fault.which % len(managers)] if managers else ""
        pid = managers.get(name, 0)
    else:
        name = TOP_SERVER if fault.victim == "top server" else _node(world, fault)
        pid = world.processes[name].pid
    if not pid or _over(world):
        yield ()
        return
    world.signal(pid, SIGSTOP)
    try:
        yield (name,)
    finally:
        world.signal(pid, SIGCONT)


@contextlib.asynccontextmanager
async def _cut(world: World, fault: Fault) -> AsyncIterator[tuple[str, ...]]:
    assert world.links is not None
    if _over(world):
        yield ()
        return
    first = TOP_SERVER if fault.victim == "top server" else _node(world, fault)
    victims: tuple[str, ...] = (first,)
    links = world.links.links_of(first)
    if fault.victim == "pair":
        second = world.nodes[(fault.which + 1) % len(world.nodes)]
        victims, links = (first, second), {frozenset((first, second))}
    world.links.cut |= links
    try:
        yield victims
    finally:
        world.links.cut -= links


async def _certificate_expires(world: World, fault: Fault) -> None:
    """Gives a node a certificate, and waits until it is not good any more. Open connections stay.

    A node that is still starting would end when it reads such a certificate, as it should.
    """
    name = _node(world, fault)
    await world.events.until(
        lambda events: presence(events.all).get(name, False) or any(events.of_kind("run_finished"))
    )
    world.issue(name, EXPIRES_S)
    await asyncio.sleep(EXPIRES_S)


@contextlib.asynccontextmanager
async def _expired(world: World, fault: Fault) -> AsyncIterator[tuple[str, ...]]:
    """Cuts the links of a node whose certificate has expired. It gets a new one when it has told that it needs one."""
    assert world.links is not None
    name = _node(world, fault)
    links = world.links.links_of(name)
    world.links.cut |= links
    try:
        yield (name,)
    finally:
        world.links.cut -= links
    await _told(world, name, EXPIRED)
    world.issue(name)


@contextlib.asynccontextmanager
async def _full(world: World, fault: Fault) -> AsyncIterator[tuple[str, ...]]:
    """Fills the disk of a process. A top server waits for room, and says so."""
    name = TOP_SERVER if fault.victim == "top server" else _node(world, fault)
    if _over(world) or not world.lives(name):
        yield ()
        return
    disks.fill(world.disk(name))
    try:
        yield (name,)
        if name == TOP_SERVER:
            await _told(world, name, FULL)
    finally:
        disks.empty(world.disk(name))


@contextlib.asynccontextmanager
async def _moved(world: World, fault: Fault) -> AsyncIterator[tuple[str, ...]]:
    """A node gets another address. Its process goes on; other nodes do not reach it at the old address any more."""
    assert world.links is not None
    name = _node(world, fault)
    world.links.readdress(name)
    world.issue(name)
    yield (name,)


async def _told(world: World, name: str, reason: str) -> None:
    """Waits until the log of a process has the reason of its fault."""
    deadline = time.time() + TOLD_S
    while reason not in world.log(name).read_text(errors="replace") and not _over(world):
        if time.time() > deadline:
            world.wrong.append(f"{name} did not tell in {TOLD_S:.0f} s: {reason}")
            break
        await asyncio.sleep(0.1)


def _node(world: World, fault: Fault) -> str:
    return world.nodes[fault.which % len(world.nodes)]


STRIKES = {
    "kill": _killed,
    "stop": _stopped,
    "cut": _cut,
    "expire": _expired,
    "fill": _full,
    "move": _moved,
}
