"""Group managers on the machines of workers: each is started on the machine that runs the fewest."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fedgsp.connections.addresses import split_address
from fedgsp.errors import ConfigError, PeerError, UserError
from fedgsp.messages import ManagerEnded, ManagerReady, StartManager, StopManager
from fedgsp.processes.children import READY_TIMEOUT_S
from fedgsp.within import within
from top_server.managers.launching import Greet, Launched

logger = logging.getLogger(__name__)

#: Managers that start at the same time on one machine.
AT_ONCE_ON_A_MACHINE = 4
#: How long a worker may take to tell how a start went: longer than it waits for the manager itself, in seconds.
START_TIMEOUT_S = READY_TIMEOUT_S + 15.0
#: How long a worker may take to tell the end of a manager, beyond the grace of that manager, in seconds.
END_TIMEOUT_S = 5.0
#: Machines that are tried for one manager.
TRIES = 4
#: How long the first start waits for the workers that are not there yet, in seconds: all have joined just before.
ALL_THERE_S = 30.0


@dataclass(slots=True, eq=False)
class Hosted:
    """The process of a manager on the machine of a worker."""

    name: str
    host: Host
    pid: int = 0
    over: str = ""
    #: Its address, once it runs.
    ready: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def end(self, grace_s: float) -> None:
        """Asks its worker to end it; waits for its end, or for that of the worker."""
        if not self.over:
            self.host.outbox.put_nowait(StopManager(self.name, grace_s))
            try:
                await within(grace_s + END_TIMEOUT_S, self.ended.wait())
            except TimeoutError:
                logger.warning("worker %s does not say that manager %s has ended", self.host.node, self.name)
                self.has_ended("its worker does not answer")

    def has_ended(self, reason: str) -> None:
        """Notes its end."""
        self.over = self.over or reason or "it ended"
        self.ended.set()
        self.host.managers.pop(self.name, None)
        if not self.ready.done():
            self.ready.set_exception(PeerError(self.over))
            self.ready.exception()  # nobody may wait for it any more


@dataclass(slots=True, eq=False)
class Host:
    """A worker that runs managers, for as long as its connection lasts."""

    node: str
    #: Its machine: the host by which others dial what listens there.
    machine: str
    #: What it is asked for; None ends its connection.
    outbox: asyncio.Queue[StartManager | StopManager | None] = field(default_factory=asyncio.Queue)
    managers: dict[str, Hosted] = field(default_factory=dict)
    #: Managers in a row that did not start.
    failures: int = 0

    def hear(self, message: ManagerReady | ManagerEnded) -> None:
        """Takes what the worker tells of a manager."""
        hosted = self.managers.get(message.manager)
        if hosted is None:
            return
        if isinstance(message, ManagerEnded):
            hosted.has_ended(message.reason)
        elif not hosted.ready.done():
            try:
                host, _ = split_address(message.address)
            except ConfigError as error:
                return hosted.has_ended(error.what)
            if host != self.machine:
                return hosted.has_ended(f"it says that it listens at {host[:100]!r}, which is not its machine")
            hosted.pid = message.pid
            hosted.ready.set_result(message.address)

    def leave(self, reason: str) -> None:
        """Its connection has ended, and with it all its managers."""
        self.outbox.put_nowait(None)
        for hosted in [*self.managers.values()]:
            hosted.has_ended(reason)


class Hosts:
    """The workers that run managers, as the launcher of managers."""

    def __init__(
        self,
        expected: Callable[[], int],
        run_key: bytes,
        certificate: Callable[[str], bytes],
        patience_s: float,
        log_of: Callable[[str], object] = lambda node: f"that of {node}",
        remote: bool = True,
    ) -> None:
        """So many workers are `expected` before the first start; before others, one is waited for, `patience_s` long.

        `certificate` makes the certificate of a manager with its key, empty without TLS; `log_of` says where the log
        of a worker is. `remote`: the workers are on other machines than this process.
        """
        self._expected = expected
        self._run_key = run_key
        self._certificate = certificate
        self._patience_s = patience_s
        self._log_of = log_of
        self._remote = remote
        self._hosts: dict[str, Host] = {}
        self._changed = asyncio.Condition()
        self._begun = False

    @property
    def at_once(self) -> int:
        """Some for each worker."""
        return AT_ONCE_ON_A_MACHINE * max(1, len(self._hosts), self._expected())

    @property
    def enough(self) -> int:
        """One for each worker."""
        return max(1, len(self._hosts), self._expected())

    @property
    def most(self) -> int | None:
        """Each takes any free port."""
        return None

    async def join(self, node: str, machine: str) -> Host:
        """A worker has connected; an older connection of the same worker has ended."""
        if (older := self._hosts.get(node)) is not None:
            older.leave(f"worker {node} has connected anew")
        async with self._changed:
            self._hosts[node] = host = Host(node, machine)
            self._changed.notify_all()
        return host

    def left(self, host: Host) -> None:
        """The connection of a worker has ended."""
        if self._hosts.get(host.node) is host:
            del self._hosts[host.node]
        host.leave(f"worker {host.node} is gone")

    async def launch(self, name: str, greet: Greet) -> Launched:
        """Starts a manager where the fewest run, and elsewhere if that fails; raises PeerError if it fails often."""
        tried: set[Host] = set()
        while True:
            host = await self._free(tried)
            tried.add(host)
            try:
                return await self._on(host, name, greet)
            except UserError as error:
                host.failures += 1
                told = f"group manager {name} did not start on the machine of {host.node}: {error.what}"
                log = f"read the log, {self._log_of(host.node)}"
                if len(tried) == TRIES or not (self._hosts.keys() - {one.node for one in tried}):
                    raise PeerError(told, error.remedy or log) from None
                logger.warning("%s; it is started elsewhere; %s", told, log)

    async def _on(self, host: Host, name: str, greet: Greet) -> Launched:
        """Starts a manager on the machine of a worker; raises UserError, and leaves nothing behind then."""
        hosted = host.managers[name] = Hosted(name, host)
        try:
            certificate = await asyncio.to_thread(self._certificate, name)
            host.outbox.put_nowait(StartManager(name, self._run_key, certificate))
            address = await within(START_TIMEOUT_S, hosted.ready)
            await greet(address)
        except TimeoutError:
            await hosted.end(0)
            raise PeerError(f"it was not ready within {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await hosted.end(0)
            raise
        host.failures = 0
        return Launched(address, hosted, str(self._log_of(host.node)), host.node, hands_on=self._remote)

    async def _free(self, tried: Collection[Host]) -> Host:
        """The worker for the next manager, none of those tried; waits for one. Raises PeerError if none comes."""
        if not self._begun:
            if not await self._wait(self._expected, ALL_THERE_S):
                logger.warning("%d of %d workers are there to run group managers", len(self._hosts), self._expected())
            self._begun = True
        if not await self._wait(lambda: 1, self._patience_s):
            raise PeerError(
                f"no worker was there for {self._patience_s:.0f} s to run group managers",
                "see why the workers ended, or run managers beside the top server: drop --place-managers",
            )
        fresh = [host for host in self._hosts.values() if host not in tried]
        on_machine = Counter[str]()
        for host in self._hosts.values():
            on_machine[host.machine] += len(host.managers)
        return min(
            fresh or self._hosts.values(),
            key=lambda host: (host.failures, on_machine[host.machine], len(host.managers), natural(host.node)),
        )

    async def _wait(self, hosts: Callable[[], int], timeout_s: float) -> bool:
        """Whether so many workers are there, after a wait of at most `timeout_s` seconds."""
        try:
            async with self._changed:
                await within(timeout_s, self._changed.wait_for(lambda: len(self._hosts) >= hosts()))
        except TimeoutError:
            return False
        return True


def natural(name: str) -> tuple[int, str]:
    """Sorts node-2 before node-10."""
    return len(name), name
