"""What one group sends: orders to its nodes, and events to the top server."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedgsp.messages import (
    Discriminated,
    Evaluated,
    Failure,
    FailureCode,
    GroupEvent,
    Member,
    MemberDone,
    MemberSkipped,
    NetworksLeft,
    Order,
    OrderKey,
    PartLost,
    Recall,
    Recalled,
    Release,
    Rerouted,
    Result,
    RunGroupRequest,
    SendUp,
    Served,
    SourceKind,
    Train,
    Trained,
    Work,
)
from fedgsp.programs import PROGRAMS
from fedgsp.security.signing import fingerprint
from fedgsp.tensors.encoding import wire_bytes
from fedgsp.tensors.updates import update_of
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.pipes import machine
from group_manager.deadline import need
from group_manager.ledger import Ledger
from group_manager.members import Members
from group_manager.sessions import Outcome, PendingOrder
from group_manager.tickets import Tickets


class Orders:
    """Sends orders, enters what they make in the ledger, waits for outcomes, and cancels open orders at the end."""

    def __init__(self, request: RunGroupRequest, members: Members, ledger: Ledger, tickets: Tickets) -> None:
        self._request = request
        self._members = members
        self._ledger = ledger
        self._tickets = tickets
        self._chained = PROGRAMS[request.program].chained
        self._open: list[PendingOrder] = []
        #: Model id -> orders whose nodes may get it from this manager.
        self._readers: defaultdict[str, list[PendingOrder]] = defaultdict(list)
        self._numbers: Counter[str] = Counter()  # of orders that no program counts, by task

    def key(self, task: str, position: int, attempt: int = 0) -> OrderKey:
        """The key of an order of this group."""
        request = self._request
        return OrderKey(request.round, task, request.group, position, attempt, request.run_id, request.serial)

    def submit(self, member: Member, key: OrderKey, work: Work, patient: bool = False) -> PendingOrder:
        """Sends an order to the node that hosts a member. A `patient` order waits for a node that is away."""
        pending = self._submit(member.node, Order(key, member.client, work), patient)
        start = getattr(work, "start", None)
        if start is not None and any(source.kind is SourceKind.MANAGER for source in start.sources):
            pending.start_coming = lambda: self._ledger.look(start.model_id).fetch
            self._readers[start.model_id].append(pending)
        produces = getattr(work, "produces", "")
        if produces:
            self._ledger.promise(produces, pending, isinstance(work, Train) and work.bring)
        if isinstance(work, Train) and work.reveal is not None:
            self._ledger.promise(update_of(produces), pending)
        return pending

    async def outcome(
        self, pending: PendingOrder, in_turn: bool = True, beside: Callable[[], Iterable[PendingOrder]] = tuple
    ) -> Outcome:
        """The outcome of an order; a failure if it makes no progress for the stall timeout of the request.

        `in_turn`: the order waited for other orders until now, so that its stall clock starts with this call. While
        orders `beside` it are being carried out, a patient order also waits for a node that is away.
        """
        return await self._members.outcome(pending, self._request.stall_timeout_s, in_turn, beside)

    def cancel(self, pending: PendingOrder) -> None:
        """Cancels an order."""
        self._members.cancel(pending)

    def holds(self, model_id: str) -> bool:
        """Whether the maker of a model still has it: the model is not released, and the node has not left since."""
        maker = self._ledger.look(model_id).maker
        return maker is not None and self._members.stayed(maker)

    async def check(self, node: str) -> None:
        """Waits until a node has answered or is known to be lost; its peers may notice a loss before this process."""
        await self.outcome(self._submit(node, Order(self._next("check"), 0, Release(()))))

    async def recall(self, prefix: str, made: Iterable[tuple[Member, str]]) -> None:
        """Asks all nodes which of these models, made under another manager of this group, they still hold.

        Nodes forget all other models whose ids begin with `prefix`.
        """
        by_node: dict[str, list[str]] = {member.node: [] for member in self._request.members}
        for member, model_id in made:
            by_node.setdefault(member.node, []).append(model_id)
        recalls = []
        for number, (node, model_ids) in enumerate(by_node.items()):
            key = self.key("recall", number, self._request.attempt)
            recalls.append(self._submit(node, Order(key, 0, Recall(prefix, tuple(model_ids)))))
        for pending in recalls:
            outcome = await self.outcome(pending, in_turn=False)  # all nodes answer at the same time
            if isinstance(outcome, Recalled):
                for model_id in set(outcome.model_ids):  # `Members` has refused models that were not asked for
                    self._ledger.promise(model_id, pending)

    def send_up(self, node: str, model_id: str, older: bool) -> PendingOrder:
        """Orders a node to upload a model to this manager.

        `older`: the model is older than the group. If the node does not have it, it is lost and will not come later.
        Outside of chains the order is patient: members may still be at work while it is carried out.
        """
        order = Order(self._next("send-up"), 0, SendUp(model_id, older, machine()))
        return self._submit(node, order, patient=not self._chained)

    def trainings(self) -> Iterator[PendingOrder]:
        """The orders of members that may be at work now. In a chain, nobody works beside the member in turn.

        Without those that wait for a model from here: the node that is to send it must not be waited for until they
        have ended.
        """
        for one in () if self._chained else self._open:
            if isinstance(one.order.work, Train) and not one.outcome.done() and one.start_coming() is None:
                yield one

    def came(self, model_id: str, since: float) -> None:
        """A fetch of a model to this manager ended, well or not, which had begun at `since`: its readers waited."""
        for one in self._readers.get(model_id, ()):
            if not one.outcome.done():
                one.start_was_fetched(since, self.time())

    def time(self) -> float:
        """The time by which this process waits, in seconds."""
        return self._members.time()

    def forget(self, models: Iterable[tuple[str, str]]) -> None:
        """Tells each node to forget its model."""
        for node, model_id in models:
            self._members.tell(node, Order(self._next("release"), 0, Release((model_id,))))

    def close(self) -> None:
        """Cancels all orders that are still open, and forgets them."""
        for pending in self._open:
            if not pending.outcome.done():
                self.cancel(pending)
                self._members.drop(pending)

    def _next(self, task: str) -> OrderKey:
        self._numbers[task] += 1
        return self.key(task, self._numbers[task])

    def _submit(self, node: str, order: Order, patient: bool = False) -> PendingOrder:
        stamped = self._tickets.stamped(order, node)
        pending = self._members.submit(node, stamped, need(self._request, node, order), patient)
        self._open.append(pending)
        return pending


class Reports:
    """Sends the events of one group, and counts bytes."""

    def __init__(self, tell: Callable[[GroupEvent], None]) -> None:
        self._tell = tell
        self.bytes_direct = self.bytes_relayed = self.bytes_travelled = 0
        #: Why the last member was skipped.
        self.reason = Failure(FailureCode.NODE_LOST, "no member of the group can take part")

    def tell(self, kind: MemberDone | MemberSkipped | NetworksLeft | PartLost | Rerouted | Served) -> None:
        """Sends one event."""
        self._tell(GroupEvent(kind))

    def done(
        self,
        member: Member,
        position: int,
        result: Result,
        pending: PendingOrder | None,
        update_length: float = 0.0,
        turn_s: float = 0.0,
    ) -> None:
        """A member finished its order, unless it needed none.

        `update_length` is 0 if it was not measured, and so is `turn_s`, the seconds of a member's turn in a relay.
        """
        self.count(result)
        proof = _proof(member, pending) if pending is not None else {}
        self.tell(MemberDone(member.client, position, result, update_length, turn_s=turn_s, **proof))

    def count(self, result: Result) -> None:
        """Adds the bytes that a member fetched for an order."""
        if isinstance(result, Trained | Evaluated | Discriminated) and result.source is not None:
            if result.source.kind is SourceKind.NODE:
                self.bytes_direct += result.bytes
            else:
                self.bytes_relayed += result.bytes
            self.bytes_travelled += result.source.travelled

    def count_relayed(self, weights: Weights) -> None:
        """Adds the bytes of a model that came to this manager."""
        self.bytes_relayed += wire_bytes(weights.tensors, weights.bfloat16)
        self.bytes_travelled += weights.came.travelled if weights.came is not None else 0

    def skipped(self, member: Member, failure: Failure) -> None:
        """A member takes no part, or no further part."""
        self.reason = failure
        self.tell(MemberSkipped(member.client, failure))


def _proof(member: Member, pending: PendingOrder) -> dict[str, Any]:
    """What the top server needs to verify the receipt of an order, beside the result."""
    reported = pending.outcome.result()
    update = reported.update if isinstance(reported, Trained) else None
    shown = pending.signed_by  # the node may have shown a newer one since
    known = not shown or bytes.fromhex(fingerprint(shown)) == member.certificate_digest
    return {
        "key": pending.key,
        "receipt": pending.receipt,
        "update_digest": update.digest if update is not None else b"",
        "certificate": b"" if known else shown,
    }
