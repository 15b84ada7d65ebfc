"""Group managers on the machine of the top server: its children, forked from a template."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedgsp.connections.addresses import split_address
from fedgsp.errors import PeerError
from fedgsp.processes.children import Child, Template, ready_line, stop
from fedgsp.settings.managers import COMMAND, IMPORTS
from top_server.managers.launching import Greet, Launched

#: Processors that this process may use.
_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
#: Managers that start at the same time. A start keeps one core busy, and hardly waits for anything else: more managers
#: at the same time would only slow each other down, until none is ready within its deadline.
SPAWN_AT_ONCE = max(4, 2 * _PROCESSORS)
#: Managers for any number of groups. A manager hardly uses a processor while its groups train, and keeps some 45 MiB.
ENOUGH = SPAWN_AT_ONCE


@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """The process of a manager on this machine."""

    child: Child
    port: int

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    @property
    def over(self) -> str:
        """How it has ended; empty while it runs."""
        code = self.child.returncode
        return "" if code is None else f"exit code {code}"

    async def end(self, grace_s: float) -> None:
        """Ends it, with SIGKILL after `grace_s` seconds."""
        await stop(self.child, grace_s)


@dataclass(frozen=True, slots=True, eq=False)
class LauncherHere:
    """Starts managers as children of this process, on one of `ports` or on any free port."""

    _template: Template
    _host: str
    _ports: range | None
    _logs: Path
    _flags: Sequence[str]
    #: The key of the run, in hexadecimal digits. It is told through standard input: a command line is not secret.
    _run_key: str
    _running: list[Here] = field(default_factory=list)

    @property
    def at_once(self) -> int:
        """One at a time if they share a range of ports: two could try the same one."""
        return SPAWN_AT_ONCE if self._ports is None else 1

    @property
    def enough(self) -> int:
        """Managers share the processors of this machine."""
        return ENOUGH if self._ports is None else min(ENOUGH, len(self._ports))

    @property
    def most(self) -> int | None:
        """Each has a port of the range."""
        return len(self._ports) if self._ports is not None else None

    async def launch(self, name: str, greet: Greet) -> Launched:
        """Starts a manager; raises UserError."""
        self._running[:] = [one for one in self._running if not one.over]
        taken = {one.port for one in self._running}
        ports = [0] if self._ports is None else [port for port in self._ports if port not in taken]
        error = PeerError("no port is free for a group manager", "widen --manager-ports")
        log = self._logs / f"manager-{name}.log"
        for port in ports:
            command = [*COMMAND, "--name", name, "--listen", f"{self._host}:{port}", *self._flags]
            child = await self._template.spawn(command, log)
            child.tell(self._run_key)
            try:
                address = await ready_line(child, f"group manager {name}", log)
                _, bound = split_address(address)
                await greet(address)
            except PeerError as failed:  # with a range of ports: another process may have this one
                await stop(child)
                error = failed
                continue
            except BaseException:
                await stop(child)
                raise
            self._running.append(Here(child, bound))
            return Launched(address, self._running[-1], str(log))
        raise error


@asynccontextmanager
async def launching_here(
    host: str, ports: range | None, logs: Path, flags: Sequence[str], run_key: bytes
) -> AsyncIterator[LauncherHere]:
    """Managers that listen on `host`, get `flags` and write logs into the folder `logs`."""
    async with aclosing(Template(IMPORTS)) as made:
        await made.start()  # its imports take half a second, until the first round needs a manager
        yield LauncherHere(made, host, ports, logs, flags, run_key.hex())
