"""The sessions of nodes with a manager, and their orders. A session may outlast its connection."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fedgsp.identity import may_replace
from fedgsp.messages import Cancel, Failure, FailureCode, Order, OrderKey, Recalled, Result
from fedgsp.security.signing import identity_of, same_holder
from group_manager.deadline import UNKNOWN, Need

#: Progress reports that come sooner after the last one are not read.
LEAST_BETWEEN_PROGRESS_S = 0.5
#: Orders without an outcome that are remembered for a node that comes back, and orders that it is told to call off.
MOST_TOLD, MOST_GIVEN_UP = 256, 4096
#: Certificates of a session that are remembered: a receipt that was signed before a renewal may come after it.
MOST_CERTIFICATES = 4
#: Fetches of its start to this manager for which the clocks of an order stand still. There are several if holders are
#: lost; but no node may stop its clocks for ever, by asking again and again for a model that cannot be had.
MOST_WAITS = 3
#: Absences of a node for which the clocks of an order stand still. During further ones they stand still only for as
#: long as the node was there before: it cannot hold up a run by coming and going.
FREE_ABSENCES = 8

Outcome = Result | Recalled | Failure | None


@dataclass(slots=True, eq=False)
class PendingOrder:
    """An order and its outcome, once that is known."""

    key: OrderKey
    node: str
    session: Session | None  # None: the node was not attached
    outcome: asyncio.Future[Outcome]
    touched: float  # time of the last report about it, in seconds
    order: Order
    begun: float = 0.0  # time at which it could begin, in seconds
    silence: float = 0.0  # longest time between two reports so far, in seconds
    mark: int = -1  # of the last progress report
    computed_s: float = 0.0  # processor time of its node by the last progress report
    computed: float = -math.inf  # time of the last report that shows more of it
    need: Need = UNKNOWN
    reports: int = 0  # of progress, so far
    receipt: bytes = b""  # of the node for the result
    signed_by: bytes = b""  # the certificate under which the receipt holds
    ended: float = 0.0  # time of the node's last report about it, in seconds
    #: Whether it may still be done when its node comes back late; whoever waits for its outcome decides how late.
    patient: bool = False
    #: Whether its node was told to call it off.
    called_off: bool = False
    #: Digest of its start, once its node has fetched it from another node.
    start: bytes = b""
    #: Is called when `start` is known.
    start_came: Callable[[], None] = lambda: None
    #: What brings its start to this manager, while that is under way; always None if its node gets it elsewhere.
    start_coming: Callable[[], asyncio.Future[None] | None] = lambda: None
    #: Fetches of its start for which its clocks stood still.
    waits: int = 0
    #: Absences of its node so far.
    absences: int = 0
    #: Time at which its node last came back, in seconds.
    came: float = 0.0
    #: Seconds for which its clocks may still stand still after `FREE_ABSENCES`, because its node was there so long.
    credit: float = 0.0

    def start_clocks(self, now: float) -> None:
        """It can begin now: until now it waited for other orders."""
        self.touched = self.begun = self.came = now
        self.silence, self.credit, self.absences = 0.0, 0.0, 0

    def touch(self, now: float) -> None:
        """Notes a report about it."""
        self.silence, self.touched = max(self.silence, now - self.touched), now

    @property
    def blocked_by(self) -> asyncio.Future[None] | None:
        """The fetch of its start for which its clocks stand still now: who sends the start has clocks, too."""
        return self.start_coming() if self.waits < MOST_WAITS else None

    def start_was_fetched(self, since: float, now: float) -> None:
        """A fetch of its start has ended, which began at `since`. Meanwhile its clocks stood still; now they go on."""
        if self.waits < MOST_WAITS:
            self.touched, self.begun = now, self.begun + now - max(since, self.begun)
        self.waits += 1

    def forgive(self, left: float, now: float) -> None:
        """Its node was away since `left`, and is back: its clocks stood still, as far as `FREE_ABSENCES` says."""
        away = now - max(left, self.begun)
        self.credit += max(0.0, left - max(self.came, self.begun))
        self.absences += 1
        if self.absences > FREE_ABSENCES:
            away = min(away, self.credit)
            self.credit -= away
        self.touched, self.begun, self.came = min(now, self.touched + away), self.begun + away, now


@dataclass(slots=True, eq=False)
class Session:
    """What a manager knows of one process of a node. Orders wait in `outbox`; None there ends the stream.

    The session goes on when the same process comes back after a loss of its connection.
    """

    node: str
    #: The certificate that the node has shown, in PEM; empty without TLS.
    certificate: bytes = b""
    #: The number that the process of the node drew when it started; empty if it told none, and cannot come back.
    process: str = ""
    #: Whether its connection comes from this machine.
    near: bool = False
    #: From where its connection comes, with the port.
    address: str = ""
    #: The host of that. Nodes with the same host share a link. Empty: not known.
    host: str = ""
    outbox: asyncio.Queue[Order | None] = field(default_factory=asyncio.Queue)
    pending: dict[OrderKey, PendingOrder] = field(default_factory=dict)
    #: Time at which its connection ended; None while it has one.
    away_since: float | None = None
    #: Done when its connection has ended; another one after it has come back.
    left: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    #: How often its connection has ended.
    breaks: int = 0
    progress_at: float = -math.inf  # loop time of the last progress report that was read
    done_at: float = -math.inf  # time at which the last order was done
    #: The certificates that the node has shown before `certificate`, the latest one first.
    older: deque[bytes] = field(default_factory=lambda: deque(maxlen=MOST_CERTIFICATES - 1))
    #: Orders without an outcome, and when they were sent: the last of them may not have arrived.
    told: deque[tuple[float, Order]] = field(default_factory=lambda: deque(maxlen=MOST_TOLD))
    #: Orders that were given up while it was away, or dropped. It is told when it comes back.
    given_up: deque[OrderKey] = field(default_factory=lambda: deque(maxlen=MOST_GIVEN_UP))

    def progress_is_due(self) -> bool:
        """Whether a progress report that came now should be read; a node sends one per second."""
        now = asyncio.get_running_loop().time()
        if now - self.progress_at < LEAST_BETWEEN_PROGRESS_S:
            return False
        self.progress_at = now
        return True

    def is_of(self, process: str, certificate: bytes) -> bool:
        """Whether this is the session of that process, which has kept its orders and models.

        Its certificate may have been renewed since. That of another node never fits, whatever process it names.
        """
        return self.process == process != "" and same_holder(self.certificate, certificate)

    def keeps_out(self, process: str, certificate: bytes) -> bool:
        """Whether another process of this name has to wait until the connection of this session has ended."""
        shown = identity_of(certificate), identity_of(self.certificate)
        waits = not may_replace(self.node, *shown, same_process=self.process == process != "")
        return self.away_since is None and waits

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """The certificates under which its receipts may hold, the latest one first; none without TLS."""
        return (self.certificate, *self.older) if self.certificate else ()

    def send(self, order: Order) -> None:
        """Sends an order if the node is there; otherwise it is sent when the node comes back."""
        if self.away_since is None:
            self.outbox.put_nowait(order)

    def tell(self, order: Order, now: float) -> None:
        """Sends an order that has no outcome."""
        self.told.append((now, order))
        self.send(order)

    def leave(self, now: float) -> None:
        """Its connection ended."""
        self.away_since = now
        self.breaks += 1
        self.left.set_result(None)
        self.outbox.put_nowait(None)

    def come_back(self, now: float, unsure_s: float, certificate: bytes = b"") -> None:
        """Its process has another connection, with this certificate.

        All orders are sent again: the node carries out none of them twice.

        Orders that were called off are called off again, and end.

        What was sent in the last `unsure_s` seconds of the old connection may not have arrived. The time away does not
        count for the clocks of the orders (`PendingOrder.forgive`).
        """
        if certificate != self.certificate:
            self.older.appendleft(self.certificate)
            self.certificate = certificate
        left = now if self.away_since is None else self.away_since
        if self.away_since is None:  # its node has noticed the end of the old connection first
            self.breaks += 1
        self.outbox.put_nowait(None)  # to the older stream, which may not have ended yet
        self.outbox = asyncio.Queue()
        for key in self.given_up:
            self.outbox.put_nowait(Order(key, 0, Cancel()))
        self.given_up.clear()
        for pending in list(self.pending.values()):
            if pending.called_off:
                # Perhaps it never came there. Then nobody would ever answer it.
                self.outbox.put_nowait(Order(pending.key, 0, Cancel()))
                self._end(pending, Failure(FailureCode.CANCELLED, "it was called off"))
                continue
            pending.forgive(left, now)
            self.outbox.put_nowait(pending.order)
        for sent, order in self.told:
            if sent >= left - unsure_s:
                self.outbox.put_nowait(order)
        if self.away_since is not None:
            self.away_since, self.left = None, asyncio.get_running_loop().create_future()

    def give_up(self, pending: PendingOrder, why: str, code: FailureCode = FailureCode.NODE_LOST) -> None:
        """An order fails whose node is away, or may never answer. A node that comes back is told to call it off."""
        if pending.key in self.pending:
            self.given_up.append(pending.key)
        self._end(pending, Failure(code, why))

    def drop(self, pending: PendingOrder) -> None:
        """Forgets an order for which nobody waits any more.

        A node may never answer: its orders would stay here until the end of the run, with all that they refer to. A
        report that comes all the same changes nothing, and teaches nothing of how long such orders take.
        """
        self.give_up(pending, "it was called off", FailureCode.CANCELLED)

    def _end(self, pending: PendingOrder, failure: Failure) -> None:
        self.pending.pop(pending.key, None)
        if not pending.outcome.done():
            pending.outcome.set_result(failure)

    def end(self) -> None:
        """Ends the stream, and all orders."""
        self.outbox.put_nowait(None)
        for pending in self.pending.values():
            if not pending.outcome.done():
                pending.outcome.set_result(Failure(FailureCode.NODE_LOST, f"node {self.node} is gone"))
        self.pending.clear()
