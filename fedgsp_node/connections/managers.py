"""The group managers that a node serves: each is dialled again after a loss, until it is gone for good."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fedgsp.connections.addresses import resolve
from fedgsp.connections.channels import Channels
from fedgsp.errors import ConfigError, UserError
from fedgsp.identity import manager as manager_of
from fedgsp.messages import Attached, AttachTo
from fedgsp.security.cleartext import check_cleartext
from fedgsp.security.tickets import Door
from fedgsp.security.tls import Tls
from fedgsp.seldom import SeldomLog
from fedgsp.within import within
from fedgsp_node.connections.attachment import Attachment, OrderLog
from fedgsp_node.receipts import Receipts
from fedgsp_node.running import Running
from fedgsp_node.worker import Worker

logger = logging.getLogger(__name__)

#: Pause before the next attempt to reach a manager, in seconds: the first one, and the longest.
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 5.0
#: Attempts in a row to reach a manager before it counts as gone; about 12 seconds if connections are refused.
REDIALS = 6


def is_gone(tries: int, joined: bool) -> bool:
    """Whether a manager is given up after so many failed attempts in a row.

    `joined`: the top server can be reached. Otherwise the link of this node is probably cut, and the manager waits.
    """
    return joined and tries >= REDIALS


def pause_s(tries: int) -> float:
    """The pause after so many failed attempts in a row."""
    return min(FIRST_RETRY_S * 2.0 ** min(tries, 10), LONGEST_RETRY_S)  # a link may be cut for thousands of tries


@dataclass(slots=True, eq=False)
class _Served:
    """A manager that is served."""

    task: asyncio.Task[None]
    #: Where it is dialled.
    address: str
    #: What the top server has said of it, at last.
    to: AttachTo
    #: Set when the top server has named the manager again, so that it is dialled at once, or served again if it is
    #: being given up.
    named: asyncio.Event = field(default_factory=asyncio.Event)


class Managers:
    """The managers of a run that a node serves at the same time."""

    def __init__(
        self,
        node: str,
        process: str,
        top_host: str,
        insecure: bool | None,
        channels: Channels,
        worker: Worker,
        door: Door,
        log: OrderLog,
        receipts: Callable[[Tls | None], Receipts],
        joined: asyncio.Event,
    ) -> None:
        """`process` names the process of this node. `insecure` is None if the node uses TLS.

        `receipts` are those of a connection with a certificate. `joined` is set while the node is connected with the
        top server.
        """
        self._node = node
        self._process = process
        self._top_host = top_host
        self._insecure = insecure
        self._channels = channels
        self._worker = worker
        self._door = door
        self._log = log
        self._receipts = receipts
        self._running = Running()
        self._ends = SeldomLog(logger, logging.INFO, "connection")
        self._served: dict[str, _Served] = {}
        #: Tasks of managers that were left, until they have ended.
        self._leaving: set[asyncio.Task[None]] = set()
        self._joined = joined

    def attach(self, run_id: str, to: AttachTo) -> None:
        """Serves a manager that the top server has named, unless the policy of the node is against it."""
        guard = self._worker.guard
        try:
            address = resolve(to.address, self._top_host)
            forbidden = guard.dialling.why_not(to.address)
            if self._insecure is not None:
                check_cleartext("the manager at", address, self._insecure)
        except ConfigError as error:
            guard.log(f"manager={to.manager[:100]} cannot be dialled: {error.what}")
            return
        if forbidden:
            guard.log(f"manager {to.manager[:100]!r} at {forbidden}")
        elif to.manager in self._served:
            self._served[to.manager].to = to
            self._served[to.manager].named.set()
        elif guard.may_attach(to.manager, self._served):
            self._replace(address)
            attached = Attached(run_id, self._node, to.manager)
            task = asyncio.create_task(self._serve(attached, address, to.ticket), name=f"manager {to.manager}")
            self._served[to.manager] = _Served(task, address, to)
            task.add_done_callback(functools.partial(self._ended, attached))

    def _replace(self, address: str) -> None:
        """Leaves the managers at an address where another one is now: a new manager may get the port of a dead one."""
        for manager, served in list(self._served.items()):
            if served.address == address:
                self._leave(manager)

    def _leave(self, manager: str) -> None:
        task = self._served.pop(manager).task
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _drop(self, address: str, manager: str, models: bool = True) -> None:
        """Closes the channels to a manager, unless they are those of another one that has its address now."""
        others = (served for name, served in self._served.items() if name != manager)
        if not any(served.address == address for served in others):
            await self._channels.drop(address, models=models)

    async def detach(self, most_s: float | None = None) -> None:
        """Leaves all managers, ends their orders, and waits for their end, at most `most_s` seconds."""
        for manager in list(self._served):
            self._leave(manager)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=most_s)

    def __len__(self) -> int:
        return len(self._served)

    def _ended(self, attached: Attached, task: asyncio.Task[None]) -> None:
        served = self._served.get(attached.manager)
        if served is not None and served.task is task:
            del self._served[attached.manager]
            if served.named.is_set() and not task.cancelled():
                self.attach(attached.run_id, served.to)

    async def _serve(self, attached: Attached, address: str, ticket: bytes) -> None:
        manager, attachment = attached.manager, None
        over, tries = False, 0
        named = self._served[manager].named
        try:
            while not over and not is_gone(tries, self._joined.is_set()):
                tries += 1
                named.clear()
                try:
                    channel = await self._channels.to(address, manager_of(manager))
                except UserError as error:
                    over, reason = False, str(error)
                else:
                    receipts = self._receipts(self._channels.shown_at(address))
                    line = self._channels.line(address, manager_of(manager))
                    if attachment is None:
                        attachment = Attachment(
                            *(channel, attached, self._worker, self._log, ticket, self._door, receipts, line),
                            process=self._process,
                            running=self._running,
                        )
                    else:
                        attachment.use(channel, receipts, line)
                    over, reason = await attachment.stay()
                    tries = 0 if attachment.reached else tries
                self._ends.line(f"manager={manager[:100]}: the connection ended: {reason}")
                await self._drop(address, manager, models=over)
                if not over:
                    await _pause(named, pause_s(tries))
                    tries = 0 if named.is_set() else tries
            if over:
                named.clear()
        finally:
            if attachment is not None:
                await attachment.close()
            await self._drop(address, manager)


async def _pause(named: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await within(seconds, named.wait())
