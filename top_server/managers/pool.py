"""Group managers as processes: spawned when more groups are run, reused while alive, replaced when dead."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fedgsp.addresses import split_address
from fedgsp.channels import Channels
from fedgsp.errors import PeerError, RunError
from fedgsp.lifecycle import python_module, ready_line, spawn, stop
from fedgsp.messages import AttachTo
from top_server.managers.client import ManagerClient
from top_server.record.journal import Recorder

#: Managers that start at the same time; more would only wait for each other's processor.
SPAWN_AT_ONCE = 4

#: A manager that does not answer will hardly end when asked.
DISCARD_GRACE_S = 0.3


@dataclass(frozen=True, slots=True)
class Manager:
    """A running manager; `address` is what nodes are told."""

    name: str
    address: str
    process: asyncio.subprocess.Process
    client: ManagerClient
    port: int

    @property
    def contact(self) -> AttachTo:
        """How nodes find it."""
        return AttachTo(self.name, self.address)


class ManagerPool:
    """Invariant: every process here was started here, and is stopped here."""

    def __init__(
        self,
        host: str,
        ports: range | None,
        log_folder: Path,
        channels: Channels,
        recorder: Recorder,
        flags: Sequence[str],
        prefix: str = "",
    ) -> None:
        self._host = host
        self._ports = ports
        self._log_folder = log_folder
        self._channels = channels
        self._recorder = recorder
        self._flags = flags
        self._prefix = prefix
        self._managers: list[Manager] = []
        self._numbers = itertools.count()

    async def ensure(self, count: int) -> list[Manager]:
        """So many live managers; raises UserError if they cannot be started."""
        for dead in [manager for manager in self._managers if manager.process.returncode is not None]:
            await self.discard(dead)
        if self._ports is not None and count > len(self._ports):
            raise RunError(
                f"the round needs {count} group managers but --manager-ports has {len(self._ports)} ports",
                "widen --manager-ports, which --resume takes too",
            )
        while len(self._managers) < count:
            missing = min(count - len(self._managers), SPAWN_AT_ONCE if self._ports is None else 1)
            # All of them end, and are in the pool if they run, before one that failed ends this.
            ended = await asyncio.gather(*(self._spawn() for _ in range(missing)), return_exceptions=True)
            for one in ended:
                if isinstance(one, BaseException):
                    raise one
        return self._managers[:count]

    async def replace(self, lost: Manager) -> Manager:
        """Another manager for one that was lost; raises UserError if it cannot be started."""
        await self.discard(lost)
        return await self._spawn()

    async def discard(self, manager: Manager) -> None:
        """Ends a manager that does not answer, or has ended; the next `ensure` replaces it."""
        if manager in self._managers:
            self._managers.remove(manager)
            code = manager.process.returncode
            reason = "it did not answer" if code is None else f"exit code {code}"
            self._recorder.record("manager_lost", manager=manager.name, reason=reason)
            await stop(manager.process, DISCARD_GRACE_S)
            await self._channels.drop(manager.address)  # the next one on this port is dialled without a backoff

    async def close(self) -> None:
        """Stops all managers."""
        await asyncio.gather(*(stop(manager.process) for manager in self._managers))
        self._managers.clear()

    async def _spawn(self) -> Manager:
        name = f"{self._prefix}m{next(self._numbers)}"
        log = self._log_folder / f"manager-{name}.log"
        taken = {manager.port for manager in self._managers}
        ports = [0] if self._ports is None else [port for port in self._ports if port not in taken]
        error = PeerError("no port is free for a group manager", "widen --manager-ports")
        for port in ports:
            command = [
                *python_module("group_manager"),
                "--name",
                name,
                "--listen",
                f"{self._host}:{port}",
                *self._flags,
            ]
            process = await spawn(command, log)
            try:
                address = await ready_line(process, f"group manager {name}", log)
                _, bound = split_address(address)
            except PeerError as failed:  # with a range of ports: perhaps somebody else has this one
                error = failed
                continue
            except BaseException:
                await stop(process)
                raise
            client = ManagerClient(name, self._channels.to(address))
            manager = Manager(name, address, process, client, bound)
            self._managers.append(manager)
            self._recorder.record("manager_spawned", manager=name, pid=process.pid, address=address)
            return manager
        raise error


@asynccontextmanager
async def manager_pool(
    host: str,
    ports: range | None,
    log_folder: Path,
    channels: Channels,
    recorder: Recorder,
    flags: Sequence[str] = (),
    prefix: str = "",
) -> AsyncIterator[ManagerPool]:
    """A pool whose managers end with the block, started with these flags; their names begin with the prefix."""
    pool = ManagerPool(host, ports, log_folder, channels, recorder, flags, prefix)
    try:
        yield pool
    finally:
        await pool.close()
