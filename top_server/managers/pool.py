"""Group managers as processes: started when a round has more groups, reused while alive, replaced when dead."""

import asyncio
import functools
import itertools
import os
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedgsp import identity
from fedgsp.addresses import split_address
from fedgsp.channels import Channels
from fedgsp.children import Child, Template, ready_line, stop
from fedgsp.errors import PeerError, RunError
from fedgsp.tickets import Issuer
from top_server.managers.client import ManagerClient
from top_server.record.events.processes import ManagerLost, ManagerSpawned, ManagersStarting
from top_server.record.journal import Recorder

#: What a manager runs, and what its template imports before.
COMMAND, IMPORTS = ["group_manager"], ["group_manager.server"]
#: Managers that start at the same time. A start keeps one core busy, and hardly waits for anything else: more managers
#: at the same time would only slow each other down, until none is ready within its deadline.
SPAWN_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))

#: Time for a manager that does not answer to end when asked, before it is killed.
DISCARD_GRACE_S = 0.3


@dataclass(frozen=True, slots=True)
class Manager:
    """A running manager; nodes dial `address`."""

    name: str
    address: str
    process: Child
    client: ManagerClient
    port: int


@dataclass(frozen=True, slots=True, eq=False)
class ManagerPool:
    """The group managers of a run. Invariant: the pool stops every process that it started."""

    _template: Template
    _host: str
    _ports: range | None
    _log_folder: Path
    _channels: Channels
    _recorder: Recorder
    _issuer: Issuer
    _flags: Sequence[str]
    _prefix: str = ""
    _managers: list[Manager] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    #: Enrolments that are not good any more.
    _revoked: list[str] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        """Where nodes dial the managers that run now."""
        return [manager.address for manager in self._managers if manager.process.returncode is None]

    async def ensure(self, count: int) -> list[Manager]:
        """Returns `count` live managers and starts those that are missing; raises UserError if one cannot start."""
        for dead in [manager for manager in self._managers if manager.process.returncode is not None]:
            await self.discard(dead)
        if self._ports is not None and count > len(self._ports):
            raise RunError(
                f"the round needs {count} group managers but --manager-ports has {len(self._ports)} ports",
                "widen --manager-ports, which --resume takes too",
            )
        if (missing := count - len(self._managers)) > 0:
            await self._start(missing)
        return self._managers[:count]

    async def _start(self, missing: int) -> None:
        """Adds managers to the pool; after a failure no further one starts, and those that run stay in the pool."""
        self._recorder.record(ManagersStarting(managers=missing))
        room = asyncio.Semaphore(SPAWN_AT_ONCE if self._ports is None else 1)  # two could try the same port
        ready = itertools.count(1)
        failures: list[Exception] = []

        async def start() -> None:
            async with room:
                if not failures:
                    try:
                        await self._spawn(missing, ready)
                    except Exception as error:
                        failures.append(error)

        await asyncio.gather(*(start() for _ in range(missing)))
        if failures:
            raise failures[0]

    async def replace(self, lost: Manager) -> Manager:
        """Returns a new manager in place of a lost one; raises UserError if it cannot be started."""
        await self.discard(lost)
        return await self._spawn(1, itertools.count(1))

    async def discard(self, manager: Manager) -> None:
        """Removes a manager that does not answer or has ended; the next `ensure` starts another one."""
        if manager in self._managers:
            self._managers.remove(manager)
            code = manager.process.returncode
            reason = "it did not answer" if code is None else f"exit code {code}"
            self._recorder.record(ManagerLost(manager=manager.name, reason=reason))
            await stop(manager.process, DISCARD_GRACE_S)
            await self._channels.drop(manager.address)  # the next manager on this port is dialled without a backoff

    async def revoke(self, enrolments: Collection[str]) -> None:
        """Tells all managers which enrolments are not good any more. A manager that does not hear it is removed."""
        self._revoked[:] = enrolments

        async def tell(manager: Manager) -> None:
            if not await manager.client.revoke(enrolments):
                await self.discard(manager)

        await asyncio.gather(*map(tell, tuple(self._managers)))

    async def _told(self, manager: Manager) -> bool:
        """Tells a new manager all revocations, also those that come meanwhile; returns whether it knows them."""
        told: list[str] = []
        while told != self._revoked:
            told = [*self._revoked]
            if not await manager.client.revoke(told):
                return False
        return True

    async def close(self) -> None:
        """Stops all managers."""
        await asyncio.gather(*(stop(manager.process) for manager in self._managers))
        self._managers.clear()

    async def _spawn(self, managers: int, ready: Iterator[int]) -> Manager:
        """Starts one of `managers` that start together; `ready` counts those that have started."""
        name = f"{self._prefix}m{next(self._numbers)}"
        log = self._log_folder / f"manager-{name}.log"
        taken = {manager.port for manager in self._managers}
        ports = [0] if self._ports is None else [port for port in self._ports if port not in taken]
        error = PeerError("no port is free for a group manager", "widen --manager-ports")
        for port in ports:
            command = [*COMMAND, "--name", name, "--listen", f"{self._host}:{port}", *self._flags]
            process = await self._template.spawn(command, log)
            process.tell(self._issuer.run_key.hex())
            try:
                address = await ready_line(process, f"group manager {name}", log)
                _, bound = split_address(address)
                dial = functools.partial(self._channels.to, address, identity.manager(name))
                await dial()
            except PeerError as failed:  # with a range of ports: another process may have this one
                await stop(process)
                error = failed
                continue
            except BaseException:
                await stop(process)
                raise
            manager = Manager(name, address, process, ManagerClient(name, dial, self._issuer), bound)
            if not await self._told(manager):
                await stop(process)
                error = PeerError(f"group manager {name} does not answer", f"read its log, {log}")
                continue
            self._managers.append(manager)
            self._recorder.record(
                ManagerSpawned(manager=name, pid=process.pid, address=address, managers=managers, ready=next(ready))
            )
            return manager
        raise error


@asynccontextmanager
async def manager_pool(
    host: str,
    ports: range | None,
    log_folder: Path,
    channels: Channels,
    recorder: Recorder,
    issuer: Issuer,
    flags: Sequence[str] = (),
    prefix: str = "",
) -> AsyncIterator[ManagerPool]:
    """A pool of managers that are started with `flags` and end with the block; `prefix` begins their names.

    Each of them is told the key of the run, through its standard input: a command line is not secret.
    """
    async with aclosing(Template(IMPORTS)) as made:
        await made.start()  # its imports take half a second, until the first round needs a manager
        pool = ManagerPool(made, host, ports, log_folder, channels, recorder, issuer, flags, prefix)
        try:
            yield pool
        finally:
            await pool.close()
