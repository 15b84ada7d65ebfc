"""Which nodes are attached to this manager, their orders, and their reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fedgsp.messages import Cancel, Done, Failed, Failure, FailureCode, Fetched, Order, Progress
from fedgsp.security.receipts import Made, Statement
from fedgsp.security.signing import holds
from group_manager.absence import Absence
from group_manager.deadline import UNKNOWN, Deadlines, Need
from group_manager.flaws import flaw
from group_manager.pace import Pace, Whose
from group_manager.sessions import Outcome, PendingOrder, Session

logger = logging.getLogger(__name__)

#: What was sent to a node so many return times before the loss of its connection was noticed may not have arrived.
UNSURE_RETURNS = 5
#: A node counts as computing for so many seconds after a report that shows more processor time.
COMPUTES_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class _Limits:
    """What an order may take now: durations in seconds, and times at which they are over."""

    most_s: float
    given_s: float
    whole_s: float
    stalls: float
    overdue: float
    #: Time at which the limits may be others.
    look_again: float


class Members:
    """The nodes attached to this manager.

    Invariant: every order ends, by a report, by the loss of its node, by a stall, or with its group. A patient order
    also ends when the program that waits for it gives it up or cancels it.
    """

    def __init__(self, return_s: float = 0.0, clock: Callable[[], float] | None = None) -> None:
        """A node whose connection has ended counts as gone after `return_s` seconds.

        `clock` does not go on while this process is frozen; the default is the time of the event loop.
        """
        self._sessions: dict[str, Session] = {}
        self._changed = asyncio.Event()
        self._pace = Pace()
        self._deadlines = Deadlines()
        self._return_s = return_s
        #: The time by which this process waits, in seconds.
        self.time = clock or (lambda: asyncio.get_running_loop().time())

    def attached(self, node: str) -> bool:
        """Whether a node is attached now, or was a moment ago and may come back."""
        session = self._sessions.get(node)
        return session is not None and not self._is_gone(session)

    def near(self, node: str) -> bool:
        """Whether a node is attached from this machine."""
        session = self._sessions.get(node)
        return session is not None and session.near

    def link(self, node: str) -> str:
        """A text that is the same for nodes that share a link: the host from which they come, if it is known."""
        session = self._sessions.get(node)
        return (session.host if session is not None else "") or f"node {node}"

    def breaks(self, node: str) -> int:
        """How often the connection of a node's process has ended so far."""
        session = self._sessions.get(node)
        return session.breaks if session is not None else 0

    def stayed(self, pending: PendingOrder) -> bool:
        """Whether the process of the node that got this order still has what it made of it."""
        session = pending.session
        return session is not None and self._sessions.get(pending.node) is session and not self._is_gone(session)

    def in_the_way(self, node: str, certificate: bytes = b"", process: str = "") -> str:
        """Why a process may not attach now: another one is attached under this name. Empty if it may."""
        old = self._sessions.get(node)
        if old is None or not old.keeps_out(process, certificate):
            return ""
        at = f" at {old.address}" if old.address else ""
        remedy = "end that one if it is an old one of this node, or start this one with another --name"
        return f"another process{at} is attached as node {node}: {remedy}"

    async def attach(self, node: str, certificate: bytes = b"", process: str = "") -> Session:
        """Opens a node's session, or continues that of the same process; ends the session of an older process."""
        old = self._sessions.get(node)
        if old is not None and old.is_of(process, certificate):
            old.come_back(self.time(), UNSURE_RETURNS * self._return_s, certificate)
            self._notify()
            return old
        session = self._sessions[node] = Session(node, certificate, process)
        self._pace.forget_stalls(node)
        self._deadlines.forget(node)
        if old is not None:
            old.end()
        self._notify()
        return session

    async def detach(self, session: Session, outbox: asyncio.Queue[Order | None] | None = None) -> None:
        """A connection of a session ended, the one with this outbox; its orders fail unless the node comes back."""
        if outbox not in (None, session.outbox) or session.away_since is not None:
            return  # the node has another connection by now, or its end is known
        if self._sessions.get(session.node) is not session:
            session.end()
        elif session.process and self._return_s > 0:
            session.leave(self.time())
            self._expire_later(session, session.breaks, self._return_s)
        else:
            del self._sessions[session.node]
            session.end()
        self._notify()

    async def wait_for(self, nodes: set[str], timeout_s: float) -> set[str]:
        """Waits until all these nodes have attached; returns the nodes that have not.

        The wait ends when no further node attaches for `timeout_s` seconds. A node that attached and left again is not
        waited for: of many nodes, some may be away at any time.
        """
        missing, deadline = set(nodes), self.time() + timeout_s
        while True:
            came = {node for node in missing if node in self._sessions and self._sessions[node].away_since is None}
            missing -= came
            if came:
                deadline = self.time() + timeout_s
            left_s = deadline - self.time()
            if not missing or left_s <= 0:
                return missing
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def submit(self, node: str, order: Order, need: Need = UNKNOWN, patient: bool = False) -> PendingOrder:
        """Sends an order with so many steps.

        It fails at once if the node is not attached. If the node is gone and may come back, a `patient` order waits.
        """
        assert order.key is not None
        loop, now, session = asyncio.get_running_loop(), self.time(), self._sessions.get(node)
        pending = PendingOrder(
            order.key, node, session, loop.create_future(), now, order, begun=now, need=need, patient=patient
        )
        if session is None or (self._is_gone(session) and not patient):
            pending.outcome.set_result(Failure(FailureCode.NODE_LOST, f"node {node} is not attached"))
        else:
            session.pending[order.key] = pending
            session.send(order)
        return pending

    def tell(self, node: str, order: Order) -> None:
        """Sends an order that has no outcome."""
        session = self._sessions.get(node)
        if session is not None:
            session.tell(order, self.time())

    def cancel(self, pending: PendingOrder) -> None:
        """Cancels an order. Its outcome is then a failure, at once if its node is away."""
        session = pending.session
        if session is not None and session.away_since is not None and not pending.outcome.done():
            session.give_up(pending, f"node {pending.node} is away, and the order is called off")
        else:
            pending.called_off = True
            self.tell(pending.node, Order(pending.key, 0, Cancel()))

    def drop(self, pending: PendingOrder) -> None:
        """Forgets an order for which nobody waits any more."""
        if pending.session is not None:
            pending.session.drop(pending)

    def report(self, session: Session, kind: Done | Failed | Fetched | Progress) -> None:
        """Takes a node's report. A repeated report, or a report about no order of this session, changes nothing."""
        now = self.time()
        if isinstance(kind, Progress):
            for progress in kind.orders:
                pending = session.pending.get(progress.key) if progress.key else None
                if pending is not None and progress.computed_s > pending.computed_s:
                    pending.computed_s, pending.computed = progress.computed_s, now
                # A mark grows with the work, and no order has endless work.
                if pending is not None and progress.mark > pending.mark and pending.reports < pending.need.reports:
                    pending.mark = progress.mark
                    pending.reports += 1
                    pending.touch(now)
            return
        if isinstance(kind, Fetched):
            pending = session.pending.get(kind.key) if kind.key else None
            if pending is not None and kind.digest and not pending.start:
                pending.start = kind.digest
                pending.start_came()
            return
        pending = session.pending.pop(kind.key, None) if kind.key else None
        if pending is not None and not pending.outcome.done():
            try:
                self._learn(session, pending, isinstance(kind, Done), now)
                outcome = _outcome(pending, kind)
            except Exception as error:  # a bug: the program that waits must still get an outcome
                logger.exception("node=%s task=%s: its report cannot be judged", pending.node, pending.key.task)
                why = f"the report of node {pending.node} cannot be judged: {type(error).__name__}: {error}"
                outcome = Failure(FailureCode.UNSPECIFIED, why)
            pending.outcome.set_result(outcome)

    def _learn(self, session: Session, pending: PendingOrder, done: bool, now: float) -> None:
        """A report ends an order: notes how long it took."""
        pending.touch(now)
        pending.ended = now
        if done:
            self._pace.note(_whose(pending), pending.silence)
            # The node has one thread: it began with this order when the one before was done.
            self._deadlines.note(_whose(pending), now - max(pending.begun, session.done_at), pending.need)
            session.done_at = now

    async def outcome(
        self,
        pending: PendingOrder,
        stall_timeout_s: float,
        in_turn: bool = True,
        beside: Callable[[], Iterable[PendingOrder]] = tuple,
    ) -> Outcome:
        """The outcome of an order: its result, or a failure.

        The order stalls if no report about it comes for `stall_timeout_s` seconds, or for a shorter time if `Pace`
        knows how fast such orders are. `in_turn`: the order waited for other orders until now, so that its stall clock
        starts with this call. Otherwise the clock started with the order.

        An order that makes progress is overdue after the time that `Deadlines` gives it, from the same start.

        A patient order of a node that is away fails when the node counts as gone, but not while one of the orders
        `beside` it is being carried out by a node that is there.

        All these clocks stand still while the start of the order is on its way to this manager (`Orders.came`).
        """
        if in_turn:
            pending.start_clocks(self.time())
        while not pending.outcome.done():
            session = pending.session
            if session is not None and session.away_since is not None:
                others_work = any(self._works(other, stall_timeout_s) for other in beside())
                absence = Absence(self.time() - session.away_since, self._return_s)
                if not (wait_s := absence.wait_s(others_work)):
                    session.give_up(pending, _gone(session))
                    break
                await asyncio.wait([pending.outcome], timeout=wait_s)
                continue
            ended: list[asyncio.Future[Any]] = [pending.outcome, *([session.left] if session is not None else [])]
            if coming := pending.blocked_by:
                await asyncio.wait([*ended, coming], return_when=asyncio.FIRST_COMPLETED)
                continue
            now, whose, limits = self.time(), _whose(pending), self._limits(pending, stall_timeout_s)
            if now >= limits.stalls:
                self._pace.note_stall(whose, limits.given_s, limits.most_s)
                return _stalled(pending, limits.given_s, limits.most_s)
            if now >= limits.overdue:
                self._deadlines.note_overdue(whose)
                return _overdue(pending, limits.whole_s)
            await asyncio.wait(ended, timeout=limits.look_again - now, return_when=asyncio.FIRST_COMPLETED)
        return pending.outcome.result()

    def _works(self, other: PendingOrder, stall_timeout_s: float) -> bool:
        """Whether an order is being carried out by a node that is there, and has neither stalled nor is it overdue.

        An order whose start is on its way counts, too.
        """
        session, now = other.session, self.time()
        if other.outcome.done() or session is None or session.away_since is not None:
            return False
        if other.blocked_by is not None:
            return True
        limits = self._limits(other, stall_timeout_s)
        return now < min(limits.stalls, limits.overdue)

    def _limits(self, pending: PendingOrder, stall_timeout_s: float) -> _Limits:
        now, whose, computes_until = self.time(), _whose(pending), pending.computed + COMPUTES_FOR_S
        computes = now < computes_until
        most_s = self._pace.most_s(whose, stall_timeout_s, computes)
        given_s = self._pace.deadline_s(whose, most_s)
        whole_s = self._deadlines.deadline_s(whose, pending.need, stall_timeout_s, computes)
        stalls, overdue = pending.touched + given_s, pending.begun + whole_s
        look_again = min(stalls, overdue, computes_until) if computes else min(stalls, overdue)
        return _Limits(most_s, given_s, whole_s, stalls, overdue, look_again)

    def _is_gone(self, session: Session) -> bool:
        return session.away_since is not None and Absence(self.time() - session.away_since, self._return_s).is_gone

    def _expire_later(self, session: Session, breaks: int, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._expire, session, breaks)

    def _expire(self, session: Session, breaks: int) -> None:
        """The orders of a node that has not come back fail, except those that are patient."""
        if session.away_since is None or session.breaks != breaks:
            return
        absence = Absence(self.time() - session.away_since, self._return_s)
        if left_s := absence.wait_s(others_work=False):  # this process was frozen meanwhile
            self._expire_later(session, breaks, left_s)
            return
        for pending in [one for one in session.pending.values() if not one.patient]:
            session.give_up(pending, _gone(session))

    def _notify(self) -> None:
        # Nothing is awaited: a node that hangs up meanwhile must not keep a session without a stream.
        self._changed.set()
        self._changed = asyncio.Event()


def _gone(session: Session) -> str:
    return f"node {session.node} is gone: its connection ended, and it did not come back in time"


def _whose(pending: PendingOrder) -> Whose:
    return pending.key.task, pending.node, pending.order.client


def _stalled(pending: PendingOrder, given_s: float, most_s: float) -> Failure:
    # The flag helps only if it set the limit.
    why = "raise --stall-timeout if it may take longer" if given_s == most_s else "far longer than such orders take"
    return Failure(FailureCode.STALLED, f"node {pending.node} made no progress for {given_s:.0f} s: {why}")


def _overdue(pending: PendingOrder, whole_s: float) -> Failure:
    return Failure(
        FailureCode.STALLED,
        f"node {pending.node} reported progress, but did not finish in {whole_s:.0f} s,"
        " far longer than such orders take: raise --stall-timeout if it may take longer",
    )


def _outcome(pending: PendingOrder, kind: Done | Failed) -> Outcome:
    if isinstance(kind, Failed):
        return kind.failure or Failure(FailureCode.UNSPECIFIED, f"node {pending.node} gave no reason")
    if wrong := flaw(pending.order.work, kind.result, pending.need):
        return Failure(FailureCode.BAD_ORDER, f"node {pending.node}: {wrong}")
    shown = pending.session.certificates if pending.session is not None else ()
    if shown and isinstance(kind.result, Made) and kind.result.ref is not None:
        text = Statement.of(pending.key, pending.order.client, pending.node, kind.result).text
        pending.signed_by = next((one for one in shown if holds(one, text, kind.receipt)), b"")
        if not pending.signed_by:
            return Failure(FailureCode.BAD_RECEIPT, f"node {pending.node} has not signed what it reports")
        pending.receipt = kind.receipt
    return kind.result
