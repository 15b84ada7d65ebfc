"""Injects faults: waits for the moment, hits the victims, and ends the fault after a while."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP

from benchmarks.chaos.events import Events
from benchmarks.chaos.plan import Fault, Moment
from benchmarks.chaos.world import TOP_SERVER, World


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


def _node(world: World, fault: Fault) -> str:
    return world.nodes[fault.which % len(world.nodes)]


STRIKES = {"kill": _killed, "stop": _stopped, "cut": _cut}
