"""Relay: the model travels from client to client, and each trains it.

The whole chain is declared at once: every order names the promised model that it starts from, so that the chain runs
without this manager. The program watches, and acts when a hop fails or stalls, or a model is refused. The module
`group_manager.chain` decides what follows from a failure.
"""

import functools
from collections import deque

from fedgsp.messages import Failure, FailureCode, GroupResult, Rerouted, SourceKind, Start, Train, Trained
from fedgsp.tensors.weights import Weights
from group_manager.chain import Chain, Decision, Hop
from group_manager.group import Group
from group_manager.sessions import PendingOrder
from group_manager.update_norms import Norms

#: Failures of a reader that may mean that the holder of its start is gone.
HOLDER_GONE = (FailureCode.UNREACHABLE, FailureCode.CUT_SHORT, FailureCode.STALLED)
#: Failures of a reader whose holder may only have been away: then this manager could not give the model either.
HOLDER_AWAY = (*HOLDER_GONE, FailureCode.NO_SUCH_MODEL)
#: Failures of a reader that may mean that its start is bad: this manager then looks at the start itself.
BAD_MODEL = (
    FailureCode.NO_SUCH_MODEL,
    FailureCode.CUT_SHORT,
    FailureCode.TOO_LONG,
    FailureCode.WRONG_DIGEST,
    FailureCode.WRONG_SHAPES,
    FailureCode.NOT_FINITE,
    FailureCode.BAD_STREAM,
    FailureCode.DISPUTED,
)
#: Attempts of one manager; the manager that follows it uses higher numbers.
ATTEMPTS = 1 << 16


#: A hop, the id of the model that its member starts from, and the order.
HopOrder = tuple[Hop, str, PendingOrder]


async def run(group: Group) -> GroupResult | Failure:
    """Walks the chain; returns the last model, or why there is none. Members that fail are skipped."""
    walk = _Walk(group)
    if group.request.attempt or walk.chain.done:
        await walk.recall()
    while walk.chain.hops:
        model = await walk.once()
        if isinstance(model, Weights):
            trail = walk.chain.trail
            return group.result(model.ref(trail[-1].model_id), sum(hop.samples for hop in trail))
    return group.nobody_trained()


class _Walk:
    """Declares a chain, watches it, and carries out what the chain decides."""

    def __init__(self, group: Group) -> None:
        self.chain = Chain(group.request)
        self._group = group
        self._norms = Norms(group) if group.request.most_update_ratio else None
        self._attempt = group.request.attempt * ATTEMPTS
        self._since = 0.0  # time, in seconds, at which the turn of the next member began
        #: Models of which a node has said that something else came, and that node.
        self._disputed: dict[str, str] = {}
        #: Hops whose start comes by way of this manager, though the node that has it could be dialled.
        self._by_manager: set[Hop] = set()
        self._breaks: dict[str, int] = {}  # how often the connections of the nodes had ended at the last declaration

    async def recall(self) -> None:
        """Finds the last good model of a chain that another manager began."""
        await self._group.orders.recall(self.chain.prefix, [(hop.member, hop.model_id) for hop in self.chain.trail])
        self._cut_back()
        self._release_spare()

    async def once(self) -> Weights | None:
        """Declares the rest of the chain and watches it. Returns the last model, or None if the chain was cut."""
        orders = self._declare()
        stopped = await self._watch(orders)
        if stopped is None:
            model = await self._group.models.collect(self.chain.trail[-1].model_id, self._group.request.tensors)
            if isinstance(model, Weights):
                return model
            stopped = model
        for _, _, pending in orders:
            self._group.orders.cancel(pending)
        if isinstance(stopped, Failure):
            last = self.chain.last
            if last is not None and stopped.code in HOLDER_GONE:
                await self._group.orders.check(last.member.node)
            if self._cut_back():
                return None
            again = self._again(stopped) or self._by_another_way(stopped, orders)
            stopped = again or await self._judged(stopped, orders)
        self._carry_out(stopped)
        self._cut_back()
        return None

    def _again(self, stopped: Failure) -> Decision | None:
        """What to do if an order failed only because a connection ended, and came back meanwhile; else None."""
        last, following, members = self.chain.last, self.chain.next, self._group.members
        hop = following or last
        if hop is None or not members.attached(hop.member.node):
            return None
        if stopped.code is FailureCode.NODE_LOST:
            return self.chain.again(hop, f"node {hop.member.node} was away")
        if stopped.code in HOLDER_AWAY:
            for one in (following, last):
                if one is not None and members.breaks(one.member.node) > self._breaks.get(one.member.node, 0):
                    return self._after_a_break(one, hop)
        return None

    def _after_a_break(self, at_fault: Hop, hop: Hop) -> Decision | None:
        """What to do if a model did not come because the node of `at_fault` was away for a moment.

        A node that had to give its model and was away too often is skipped, and not those who were to read it.
        """
        why = f"node {at_fault.member.node} was away for a moment"
        again = self.chain.again(hop, why, at_fault)
        if again is None and at_fault is self.chain.last:
            again = self.chain.refuse(at_fault, Failure(FailureCode.UNREACHABLE, f"{why}, again and again"))
        return again

    def _by_another_way(self, stopped: Failure, orders: deque[HopOrder]) -> Decision | None:
        """What to do if the next member may wait for a model that the node before it keeps to itself; else None.

        Nothing shows which of the two nodes is at fault. So the member gets the model once by way of this manager, to
        which the other node has to give it, too.
        """
        if stopped.code is not FailureCode.STALLED or not orders:
            return None
        (hop, _, pending), start = orders[0], _start_in_turn(orders)
        if start is None or pending.start or not self._has_another_way(hop, start):
            return None
        if self._group.models.has(start.model_id):  # the member came here for it, so that something else holds it up
            return None
        self._by_manager.add(hop)
        return self.chain.again(hop, f"nothing came from node {start.sources[0].name}: by way of the manager")

    def _has_another_way(self, hop: Hop, start: Start) -> bool:
        """Whether the start came from another node, and can also come by way of this manager."""
        kinds = [source.kind for source in start.sources]
        return hop not in self._by_manager and kinds == [SourceKind.NODE, SourceKind.MANAGER]

    def _declare(self) -> deque[HopOrder]:
        group, request, orders = self._group, self._group.request, deque[HopOrder]()
        if self._norms is not None:
            self._norms.missing = ""
        self._breaks = {hop.member.node: group.members.breaks(hop.member.node) for hop in self.chain.hops}
        for position, before, hop in self.chain.declare(self._attempt):
            start = (
                group.given_start(hop.member, keep=False)
                if before is None
                else group.trained_start(before.member, before.model_id, hop.member, hop in self._by_manager)
            )
            work = Train(start, hop.model_id, request.training, request.reveal, outgoing=request.outgoing)
            pending = group.orders.submit(
                hop.member, group.orders.key("train", position, self._attempt), work, patient=True
            )
            pending.start_came = functools.partial(self._start_came, hop, work, pending)
            orders.append((hop, start.model_id, pending))
        self._attempt += 1
        self._since = group.members.time()
        return orders

    def _start_came(self, hop: Hop, work: Train, pending: PendingOrder) -> None:
        if hop.model_id == work.produces:  # not if the chain was declared again meanwhile
            hop.start = pending.start
            self._release_spare()

    async def _watch(self, orders: deque[HopOrder]) -> Failure | Decision | None:
        """Finishes hop after hop, and takes its order out. Returns why the next one failed, or what was decided."""
        group = self._group
        while orders:
            hop, start_id, pending = orders[0]
            outcome = await group.orders.outcome(pending)
            if isinstance(outcome, Failure):
                return outcome
            if not isinstance(outcome, Trained) or outcome.ref is None:
                return Failure(FailureCode.BAD_ORDER, f"node {pending.node} reported no model of its training")
            if disputed := self._dispute(outcome):
                return disputed
            if self._norms is not None:
                length = await self._norms.measure(start_id, hop.model_id)
                if isinstance(length, Failure):
                    return length
                refused = self.chain.judge(length)
                if refused is not None:
                    return refused
            if outcome.source is not None and outcome.source.kind is SourceKind.MANAGER:
                group.models.by_way_of_here(start_id)
            self.chain.finish(outcome.samples, outcome.ref.digest)
            orders.popleft()
            turn_s, self._since = max(0.0, pending.ended - self._since), pending.ended
            outcome = await group.models.with_update(outcome)
            group.reports.done(hop.member, self.chain.done - 1, outcome, pending, hop.length, turn_s)
            self._release_spare()
        return None

    async def _judged(self, failed: Failure, orders: deque[HopOrder]) -> Decision:
        """Refuses the hop that is at fault.

        A reader whose start is disputed gets it once more, by way of this manager, which has compared it with what its
        maker reported. So nobody is skipped for what another node says.
        """
        hop, why = await self._at_fault(failed, orders)
        start = _start_in_turn(orders)
        if why.code is FailureCode.DISPUTED and hop is self.chain.next and start and self._has_another_way(hop, start):
            self._by_manager.add(hop)
            if again := self.chain.again(hop, f"{why.detail}: by way of the manager"):
                return again
        return self.chain.refuse(hop, why)

    async def _at_fault(self, failed: Failure, orders: deque[HopOrder]) -> tuple[Hop, Failure]:
        """The hop to refuse after a failure of the next hop, or of fetching the result: the next one, or the last."""
        last, following = self.chain.last, self.chain.next
        if following is None:
            assert last is not None
            return last, failed
        missing = self._norms.missing if self._norms is not None else ""
        if missing == following.model_id:  # its own model could not be had for the measurement
            return following, failed
        if last is not None and missing == last.model_id:
            return last, failed
        # Of a member that was to get its start from here and has stalled, the start may never have come here.
        start = _start_in_turn(orders)
        by_manager = start is not None and {source.kind for source in start.sources} == {SourceKind.MANAGER}
        withheld = failed.code is FailureCode.STALLED and by_manager
        if last is not None and (withheld or failed.code in BAD_MODEL):
            # The reader's word is not enough: the reader may be the one that fails, or lies.
            seen = await self._group.models.collect(last.model_id, self._group.request.tensors)
            if isinstance(seen, Failure):
                return last, seen
            if withheld:
                return following, failed
            if failed.code is not FailureCode.DISPUTED:
                failed = Failure(FailureCode.DISPUTED, f"the model is good here, but the reader says: {failed}")
            # The model is good here. If it came straight from its node, that may have sent another one, or the reader
            # may lie: so the second node that says so is believed.
            straight = start is not None and [source.kind for source in start.sources] == [SourceKind.NODE]
            reader = following.member.node
            if straight and self._disputed.setdefault(last.model_id, reader) != reader:
                return last, failed
        return following, failed

    def _dispute(self, outcome: Trained) -> Failure | None:
        """A failure if the next member trained from another model than the last member reports to have made."""
        last = self.chain.last
        if last is None or outcome.start is None or not last.digest or outcome.start.digest == last.digest:
            return None
        return Failure(
            FailureCode.DISPUTED,
            f"node {last.member.node} reports another model than came to the next member of the relay",
        )

    def _cut_back(self) -> bool:
        """Takes lost models out of the chain; whether there were any."""
        lost = self.chain.lose(self._group.orders.holds, self._group.members.attached)
        if lost is not None:
            self._carry_out(lost)
        return lost is not None

    def _carry_out(self, decision: Decision) -> None:
        self._group.models.release(decision.release)
        for member, why in decision.reports:
            if isinstance(why, Failure):
                self._group.reports.skipped(member, why)
            else:
                self._group.reports.tell(Rerouted(member.client, why))

    def _release_spare(self) -> None:
        self._group.models.release(self.chain.spare(self._group.orders.holds))


def _start_in_turn(orders: deque[HopOrder]) -> Start | None:
    """From where the member in turn gets its start."""
    work = orders[0][2].order.work if orders else None
    return work.start if isinstance(work, Train) else None
