"""Which nodes are attached to this manager, their orders, and their reports."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from types import NoneType

from fedgsp.limits.items import MOST_CLASSES
from fedgsp.messages import (
    MOST_SAMPLES,
    Describe,
    Described,
    Discriminate,
    Discriminated,
    Done,
    Evaluate,
    Evaluated,
    Failed,
    Failure,
    FailureCode,
    Initialise,
    ModelRef,
    Order,
    OrderKey,
    Progress,
    Recall,
    Recalled,
    Result,
    Source,
    SourceKind,
    Start,
    Train,
    Trained,
    Work,
)
from fedgsp.names import TEXT_RULE, is_text
from fedgsp.receipts import Made, Statement
from fedgsp.signing import holds
from fedgsp.updates import update_of
from fedgsp.weights import CODINGS
from group_manager.deadline import UNKNOWN, Deadlines, Need
from group_manager.pace import Pace, Whose

#: Bytes that an order can have moved; sums of such numbers fit a message.
MOST_BYTES = 1 << 56
#: Local steps (FedNova) that a node may report: so many for each step of the order, momentum of 0.9 gives ten; and at
#: least one in so many, because the fewer they are, the further its update is carried.
STEPS_FACTOR = 16
#: Progress reports that come sooner after the last one are not read.
LEAST_BETWEEN_PROGRESS_S = 0.5
#: A node counts as computing for so many seconds after a report that shows more processor time.
COMPUTES_FOR_S = 10.0
#: Kind of work -> kind of its result; other kinds of work have none.
_ANSWERS: dict[type, type] = {
    Train: Trained,
    Initialise: Trained,
    Evaluate: Evaluated,
    Describe: Described,
    Discriminate: Discriminated,
    Recall: Recalled,
}

Outcome = Result | Recalled | Failure | None


@dataclass(slots=True, eq=False)
class PendingOrder:
    """An order and its outcome, once that is known."""

    key: OrderKey
    node: str
    session: Session | None  # None: the node was not attached
    outcome: asyncio.Future[Outcome]
    touched: float  # loop time of the last report about it, in seconds
    order: Order
    begun: float = 0.0  # loop time at which it could begin, in seconds
    silence: float = 0.0  # longest time between two reports so far, in seconds
    mark: int = -1  # of the last progress report
    computed_s: float = 0.0  # processor time of its node by the last progress report
    computed: float = -math.inf  # loop time of the last report that shows more of it
    need: Need = UNKNOWN
    reports: int = 0  # of progress, so far
    receipt: bytes = b""  # of the node for the result
    ended: float = 0.0  # loop time of the node's last report about it, in seconds


@dataclass(slots=True, eq=False)
class Session:
    """One node's stream. Orders wait in `outbox`; None there ends the stream."""

    node: str
    #: The certificate that the node has shown, in PEM; empty without TLS.
    certificate: bytes = b""
    outbox: asyncio.Queue[Order | None] = field(default_factory=asyncio.Queue)
    pending: dict[OrderKey, PendingOrder] = field(default_factory=dict)
    progress_at: float = -math.inf  # loop time of the last progress report that was read
    done_at: float = -math.inf  # loop time at which the last order was done

    def progress_is_due(self) -> bool:
        """Whether a progress report that came now should be read; a node sends one per second."""
        now = asyncio.get_running_loop().time()
        if now - self.progress_at < LEAST_BETWEEN_PROGRESS_S:
            return False
        self.progress_at = now
        return True


class Members:
    """The nodes attached to this manager.

    Invariant: every order ends, by a report, by the loss of its node, or by a stall.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._changed = asyncio.Event()
        self._pace = Pace()
        self._deadlines = Deadlines()

    def attached(self, node: str) -> bool:
        """Whether a node is attached now."""
        return node in self._sessions

    def stayed(self, pending: PendingOrder) -> bool:
        """Whether the node has been attached without a break since it got this order."""
        return pending.session is not None and self._sessions.get(pending.node) is pending.session

    async def attach(self, node: str, certificate: bytes = b"") -> Session:
        """Opens a node's session, and ends an older session of the same node."""
        old, session = self._sessions.get(node), Session(node, certificate)
        self._sessions[node] = session
        self._pace.forget_stalls(node)
        self._deadlines.forget(node)
        if old is not None:
            _end(old)
        self._notify()
        return session

    async def detach(self, session: Session) -> None:
        """Ends a session, so that its orders fail."""
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
        _end(session)
        self._notify()

    async def wait_for(self, nodes: set[str], timeout_s: float) -> set[str]:
        """Waits until all these nodes have attached; returns the nodes that have not.

        The wait ends when no further node attaches for `timeout_s` seconds. A node that attached and left again is not
        waited for: of many nodes, some may be away at any time.
        """
        missing, loop = set(nodes), asyncio.get_running_loop()
        deadline = asyncio.timeout(timeout_s)

        def all_came() -> bool:
            came = [node for node in missing if node in self._sessions]
            if came:
                deadline.reschedule(loop.time() + timeout_s)
            missing.difference_update(came)
            return not missing

        try:
            async with deadline:
                while not all_came():
                    await self._changed.wait()
        except TimeoutError:
            pass
        return missing

    def submit(self, node: str, order: Order, need: Need = UNKNOWN) -> PendingOrder:
        """Sends an order with so many steps. It fails at once if the node is not attached."""
        assert order.key is not None
        loop = asyncio.get_running_loop()
        session, now = self._sessions.get(node), loop.time()
        pending = PendingOrder(order.key, node, session, loop.create_future(), now, order, begun=now, need=need)
        if session is None:
            pending.outcome.set_result(Failure(FailureCode.NODE_LOST, f"node {node} is not attached"))
        else:
            session.pending[order.key] = pending
            session.outbox.put_nowait(order)
        return pending

    def tell(self, node: str, order: Order) -> None:
        """Sends an order that has no outcome."""
        session = self._sessions.get(node)
        if session is not None:
            session.outbox.put_nowait(order)

    def report(self, session: Session, kind: Done | Failed | Progress) -> None:
        """Takes a node's report. A repeated report, or a report about no order of this session, changes nothing."""
        now = asyncio.get_running_loop().time()
        if isinstance(kind, Progress):
            for progress in kind.orders:
                pending = session.pending.get(progress.key) if progress.key else None
                if pending is not None and progress.computed_s > pending.computed_s:
                    pending.computed_s, pending.computed = progress.computed_s, now
                # A mark grows with the work, and no order has endless work.
                if pending is not None and progress.mark > pending.mark and pending.reports < pending.need.reports:
                    pending.mark = progress.mark
                    pending.reports += 1
                    _touch(pending, now)
            return
        pending = session.pending.pop(kind.key, None) if kind.key else None
        if pending is not None and not pending.outcome.done():
            _touch(pending, now)
            pending.ended = now
            if isinstance(kind, Done):
                self._pace.note(_whose(pending), pending.silence)
                # The node has one thread: it began with this order when the one before was done.
                self._deadlines.note(_whose(pending), now - max(pending.begun, session.done_at), pending.need)
                session.done_at = now
            pending.outcome.set_result(_outcome(pending, kind))

    async def outcome(self, pending: PendingOrder, stall_timeout_s: float, in_turn: bool = True) -> Outcome:
        """The outcome of an order: its result, or a failure.

        The order stalls if no report about it comes for `stall_timeout_s` seconds, or for a shorter time if `Pace`
        knows how fast such orders are. `in_turn`: the order waited for other orders until now, so that its stall clock
        starts with this call. Otherwise the clock started with the order.

        An order that makes progress is overdue after the time that `Deadlines` gives it, from the same start.
        """
        loop = asyncio.get_running_loop()
        if in_turn:
            pending.touched = pending.begun = loop.time()
            pending.silence = 0.0
        while not pending.outcome.done():
            now, whose = loop.time(), _whose(pending)
            computes_until = pending.computed + COMPUTES_FOR_S
            computes = now < computes_until
            most_s = self._pace.most_s(whose, stall_timeout_s, computes)
            given_s = self._pace.deadline_s(whose, most_s)
            whole_s = self._deadlines.deadline_s(whose, pending.need, stall_timeout_s, computes)
            if now >= pending.touched + given_s:
                self._pace.note_stall(whose, given_s, most_s)
                return _stalled(pending, given_s, most_s)
            if now >= pending.begun + whole_s:
                self._deadlines.note_overdue(whose)
                return _overdue(pending, whole_s)
            ends = min(pending.touched + given_s, pending.begun + whole_s)
            if computes:
                ends = min(ends, computes_until)
            await asyncio.wait([pending.outcome], timeout=ends - now)
        return pending.outcome.result()

    def _notify(self) -> None:
        # Nothing is awaited: a node that hangs up meanwhile must not keep a session without a stream.
        self._changed.set()
        self._changed = asyncio.Event()


def _touch(pending: PendingOrder, now: float) -> None:
    pending.silence, pending.touched = max(pending.silence, now - pending.touched), now


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
    certificate = pending.session.certificate if pending.session is not None else b""
    if certificate and isinstance(kind.result, Made) and kind.result.ref is not None:
        statement = Statement.of(pending.key, pending.order.client, pending.node, kind.result)
        if not holds(certificate, statement.text, kind.receipt):
            return Failure(FailureCode.BAD_RECEIPT, f"node {pending.node} has not signed what it reports")
        pending.receipt = kind.receipt
    return kind.result


def _end(session: Session) -> None:
    session.outbox.put_nowait(None)
    for pending in session.pending.values():
        if not pending.outcome.done():
            pending.outcome.set_result(Failure(FailureCode.NODE_LOST, f"node {session.node} is gone"))
    session.pending.clear()


def flaw(work: Work | None, result: Result | Recalled | None, needed: Need = UNKNOWN) -> str:
    """What is wrong with the result of an order that needed so many steps; empty if nothing is."""
    wanted = _ANSWERS.get(type(work), NoneType)
    if type(result) is not wanted:
        return f"it answered {_name(type(result))} in place of {_name(wanted)}"
    return next((why for wrong, why in _flaws(work, result, needed) if wrong), "")


def _flaws(work: Work | None, result: Result | Recalled | None, needed: Need) -> list[tuple[bool, str]]:
    """(whether a result has this flaw, the flaw) for every possible flaw of a result of the right kind."""
    produces = getattr(work, "produces", "")
    ref = getattr(result, "ref", None) or ModelRef("")
    samples, moved = getattr(result, "samples", 0), getattr(result, "bytes", 0)
    source = getattr(result, "source", None) or Source(SourceKind.UNSPECIFIED, "")
    given, came = getattr(work, "start", None) or Start("", ()), getattr(result, "start", None) or ModelRef("")
    flaws = [
        (ref.id != produces, f"it made model {ref.id!r} in place of {produces!r}"),
        (came.id not in ("", given.model_id), f"it began with model {came.id!r} in place of {given.model_id!r}"),
        (b"" not in (given.digest, came.digest) and given.digest != came.digest, "it began with another model"),
        (samples > MOST_SAMPLES, f"it says that it has {samples} samples"),
        (moved > MOST_BYTES, f"it says that it moved {moved} bytes"),
        (source.travelled > MOST_BYTES, f"it says that {source.travelled} bytes travelled"),
        (source.coding not in ("", *CODINGS), f"its start came in the unknown way {source.coding[:40]!r}"),
    ]
    on_training_part = isinstance(work, Evaluate) and work.training_part and not work.only_compare
    if needed.samples and (isinstance(work, Train) or on_training_part):
        why = f"it says that it has {samples} training samples, and said {needed.samples} when it joined"
        flaws.append((samples != needed.samples, why))
    if isinstance(result, Trained) and isinstance(work, Train) and needed != UNKNOWN:
        few, many = 1 / STEPS_FACTOR, STEPS_FACTOR * needed.least
        # 0: the training has no such number.
        possible = result.steps == 0 or few <= result.steps <= many
        flaws.append((not possible, f"it says that it took {result.steps:g} local steps, not {few:g} to {many:g}"))
    if isinstance(result, Trained) and isinstance(work, Train) and work.measure_accuracy:
        told, guess = result.train_accuracy, 1 / MOST_CLASSES
        flaws.append((not guess <= told <= 1, f"it says that its training accuracy is {told:g}, not {guess:g} to 1"))
    match result:
        case Trained(update=update) if update is not None:
            asked = isinstance(work, Train) and work.reveal is not None and update.id == update_of(produces)
            flaws.append((not asked, f"it revealed {update.id!r}, which was not asked for"))
        case Evaluated(correct=correct, judged=judged, squared_distance=distance, metrics=metrics):
            flaws += [
                (not all(map(is_text, metrics)), f"the name of a metric has to be {TEXT_RULE}"),
                (not result.denominators.keys() <= metrics.keys(), "it gave a denominator without its numerator"),
                (correct > judged, f"{correct} right answers on {judged} labels"),
                (judged > MOST_SAMPLES, f"it says that it has {judged} labels"),
                (math.isnan(distance) or distance < 0, f"a squared distance of {distance}"),
            ]
        case Described(class_counts=counts):
            flaws += [
                (count > MOST_SAMPLES, f"it says that it has {count} samples of class {label}")
                for label, count in enumerate(counts)
            ]
        case Recalled(model_ids=model_ids):
            unknown = set(model_ids) - set(work.model_ids if isinstance(work, Recall) else ())
            flaws.append((bool(unknown), f"it holds {sorted(unknown)}, which were not asked for"))
    for made in (ref, getattr(result, "update", None) or ModelRef("")):
        flaws.append((bool(made.id) and not made.digest, f"it made {made.id!r} without a digest"))
    return flaws


def _name(kind: type) -> str:
    return "nothing" if kind is NoneType else kind.__name__
