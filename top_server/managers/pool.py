"""Group managers as processes: started when a round has more groups, reused while alive, replaced when dead.

A manager leads several groups at the same time if a round has more groups than managers are useful for.
"""

import asyncio
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fedgsp import identity
from fedgsp.connections.channels import Channels
from fedgsp.errors import PeerError, UserError
from fedgsp.processes.lifecycle import STOP_GRACE_S
from fedgsp.security.tickets import Issuer
from fedgsp.to_the_end import looked_at
from top_server.managers.at_once import AtOnce
from top_server.managers.client import ManagerClient
from top_server.managers.launching import Launcher, Process
from top_server.record.events.base import ABSENT
from top_server.record.events.processes import (
    ManagerLost,
    ManagerNotStarted,
    ManagerSpawned,
    ManagersStarting,
    ManagerStopped,
)
from top_server.record.journal import Recorder

logger = logging.getLogger(__name__)

#: Time for a manager that does not answer to end when asked, before it is killed.
DISCARD_GRACE_S = 0.3


@dataclass(frozen=True, slots=True)
class Manager:
    """A running manager; nodes dial `address`."""

    name: str
    address: str
    process: Process
    client: ManagerClient
    #: Whether it hands on the start of its group: see `Launched`.
    hands_on: bool = False


class ManagerPool:
    """The group managers of a run. Invariant: the pool stops every process that it started."""

    def __init__(
        self, launcher: Launcher, channels: Channels, recorder: Recorder, issuer: Issuer, prefix: str = ""
    ) -> None:
        """`prefix` begins the names of the managers."""
        self._launcher = launcher
        self._channels = channels
        self._recorder = recorder
        self._issuer = issuer
        self._prefix = prefix
        self._managers: list[Manager] = []
        #: The ends of managers that do not count any more. Until it has ended, a manager has its port.
        self._ends: dict[Manager, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._starting = AtOnce(lambda: launcher.at_once)
        #: Enrolments that are not good any more.
        self._revoked: list[str] = []

    @property
    def _alive(self) -> list[Manager]:
        return [manager for manager in self._managers if not manager.process.over]

    @property
    def addresses(self) -> list[str]:
        """Where nodes dial the managers that run now."""
        return [manager.address for manager in self._alive]

    async def ensure(self, groups: int) -> list[Manager]:
        """Returns a manager for each of so many groups; several groups may have the same one.

        Starts those that are missing, and raises UserError if one cannot start.
        """
        dead = [manager for manager in self._managers if manager.process.over]
        spare = self._alive[self._launcher.enough :]  # which once took the groups of a lost one
        await asyncio.gather(*map(self.discard, dead), *map(self._stop, spare))
        count = min(groups, self._launcher.enough)
        while (missing := count - len(self._managers)) > 0:  # one may be discarded while others start
            await self._start(missing)
        return [self._managers[number % count] for number in range(groups)]

    async def _start(self, missing: int) -> None:
        """Adds managers to the pool; after a failure no further one starts, and those that run stay in the pool."""
        self._recorder.record(ManagersStarting(managers=missing))
        ready = itertools.count(1)
        failures: list[Exception] = []

        async def start() -> None:
            async with self._starting:
                if not failures:
                    try:
                        await self._spawn(missing, ready)
                    except Exception as error:
                        failures.append(error)

        await asyncio.gather(*(start() for _ in range(missing)))
        if failures:
            raise failures[0]

    async def replace(self, lost: Manager) -> Manager:
        """Returns a manager for one group of a lost one; raises UserError if none runs and none can be started.

        Each group gets a new one of its own, so that a group at which managers die takes no other group along. Only if
        no further manager can run, the group goes to one that has others.
        """
        await self.discard(lost)
        async with self._starting:
            if len(self._alive) != self._launcher.most:
                try:
                    return await self._spawn(1, itertools.count(1))
                except UserError as error:
                    if not self._alive:
                        raise
                    logger.warning(
                        "no further group manager can be started, so a running one leads one more group: %s", error
                    )
            return self.other_than(lost)

    def other_than(self, manager: Manager) -> Manager:
        """Another running manager, for a group that broke off at `manager`. Returns `manager` if there is no other."""
        others = [other for other in self._alive if other is not manager]
        return others[next(self._turns) % len(others)] if others else manager

    async def discard(self, manager: Manager) -> None:
        """Removes a manager that does not answer or has ended, and waits for its end; `ensure` starts another one."""
        if manager in self._managers:
            self._managers.remove(manager)
            self._recorder.record(
                ManagerLost(manager=manager.name, reason=manager.process.over or "it did not answer")
            )
        await self._end(manager, DISCARD_GRACE_S)

    async def _stop(self, spare: Manager) -> None:
        if spare in self._managers:
            self._managers.remove(spare)
            self._recorder.record(ManagerStopped(manager=spare.name))
        await self._end(spare, STOP_GRACE_S)

    async def _end(self, manager: Manager, grace_s: float) -> None:
        """Ends a manager, once for all who ask."""

        async def end() -> None:
            await manager.process.end(grace_s)
            await self._channels.drop(manager.address)  # the next one on this port is dialled without a backoff

        if manager not in self._ends:
            self._ends[manager] = looked_at(end())
        await asyncio.shield(self._ends[manager])

    async def revoke(self, enrolments: Collection[str]) -> None:
        """Tells all managers which enrolments are not good any more. A manager that does not hear it is removed."""
        self._revoked[:] = enrolments

        async def tell(manager: Manager) -> None:
            if not await manager.client.revoke(enrolments):
                await self.discard(manager)

        await asyncio.gather(*map(tell, tuple(self._managers)))

    async def _told(self, client: ManagerClient) -> bool:
        """Tells a new manager all revocations, also those that come meanwhile; returns whether it knows them."""
        told: list[str] = []
        while told != self._revoked:
            told = [*self._revoked]
            if not await client.revoke(told):
                return False
        return True

    async def close(self) -> None:
        """Stops all managers."""
        managers, self._managers = self._managers, []
        await asyncio.gather(*(self._end(manager, STOP_GRACE_S) for manager in {*managers, *self._ends}))

    async def _spawn(self, managers: int, ready: Iterator[int]) -> Manager:
        """Starts one of `managers` that start together; `ready` counts those that have started. Raises UserError."""
        name = f"{self._prefix}m{next(self._numbers)}"
        try:
            return await self._started(name, managers, ready)
        except UserError as error:
            self._recorder.record(ManagerNotStarted(manager=name, reason=str(error)))
            raise

    async def _started(self, name: str, managers: int, ready: Iterator[int]) -> Manager:
        ending = [end for end in self._ends.values() if not end.done()]
        if ending and self._launcher.most is not None:
            await asyncio.wait(ending)  # they still have their ports

        async def greet(address: str) -> None:
            # Somebody may have dialled the last process at this address after its end: that channel would wait.
            await self._channels.drop(address)
            await self._channels.to(address, identity.manager(name))

        launched = await self._launcher.launch(name, greet)
        dial = functools.partial(self._channels.to, launched.address, identity.manager(name))
        dial_models = functools.partial(dial, models=True)
        manager = Manager(
            *(
                name,
                launched.address,
                launched.process,
                ManagerClient(name, dial, self._issuer, self._channels.lost_after_s, dial_models),
            ),
            hands_on=launched.hands_on,
        )
        try:
            told = await self._told(manager.client)
        except BaseException:
            await launched.process.end(STOP_GRACE_S)
            raise
        if not told:
            await launched.process.end(STOP_GRACE_S)
            raise PeerError(f"group manager {name} does not answer", f"read its log, {launched.log}")
        self._managers.append(manager)
        self._recorder.record(
            ManagerSpawned(
                manager=name,
                pid=launched.process.pid,
                address=launched.address,
                node=launched.node or ABSENT,
                managers=managers,
                ready=next(ready),
            )
        )
        return manager


@asynccontextmanager
async def manager_pool(
    launcher: Launcher, channels: Channels, recorder: Recorder, issuer: Issuer, prefix: str = ""
) -> AsyncIterator[ManagerPool]:
    """A pool of managers, which end with the block; `prefix` begins their names."""
    pool = ManagerPool(launcher, channels, recorder, issuer, prefix)
    try:
        yield pool
    finally:
        await pool.close()
