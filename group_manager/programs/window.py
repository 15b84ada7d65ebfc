"""Training orders to many members, only so many ahead of the member whose result is awaited, and judged results."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from fedgsp.messages import Failure, FailureCode, Member, Results, Train, Trained
from fedgsp.transfers import pipes
from group_manager.group import Group
from group_manager.norm_limit import Lengths
from group_manager.sessions import PendingOrder
from group_manager.update_norms import Norms

#: Orders per node that are in training, or whose results wait; bounds memory for any number of members.
AHEAD_PER_NODE = 4
#: Members bring their models unasked only if the models on their way take no more bytes together than this.
MOST_BROUGHT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class MemberResult:
    """The outcome of a member's training order, and the length of its update if it was measured."""

    position: int
    member: Member
    model_id: str
    outcome: Trained | Failure
    pending: PendingOrder
    length: float | None = None


#: Called with each member whose model does not come unasked, the id of the model, and the order that makes it.
Ordered = Callable[[Member, str, PendingOrder], None]


def nobody_asks(_: Member, __: str, ___: PendingOrder) -> None:
    """The models stay where they are: an `Ordered`."""


async def train_all(
    group: Group,
    retain: bool = False,
    trial: bool = False,
    bring: bool = False,
    accuracy: bool = False,
    ordered: Ordered = nobody_asks,
) -> AsyncIterator[MemberResult]:
    """Lets every member train from its start; yields results in the order of the members.

    If the run limits lengths, the outcome of a too long update is a failure. Only updates with a weight are measured.
    The first results are held back until there are enough to judge them.

    With `bring`, members with a weight upload their models unasked, which saves a message for each. Models that are
    large enough for a pipe (`fedgsp.transfers.pipes`) are always asked for. With `accuracy`, nodes evaluate
    each trained model on the samples that it was trained on. `ordered` is called for each order whose model
    does not come unasked.
    """
    request = group.request
    norms, lengths = Norms(group), Lengths(request.update_lengths, request.most_update_ratio)
    waiting: list[MemberResult] = []
    async for one in _trained(group, retain, trial, bring, accuracy, ordered):
        if not request.most_update_ratio:
            yield one
            continue
        if isinstance(one.outcome, Trained) and one.member.weight > 0:
            start = one.member.start.ref if one.member.start is not None else request.start
            assert start is not None
            found = await norms.measure(start.id, one.model_id)
            one = replace(one, outcome=found) if isinstance(found, Failure) else replace(one, length=found)
        waiting.append(one)
        usual = lengths.usual([one.length for one in waiting if one.length is not None])
        if usual is not None:
            for one in waiting:
                refusal = lengths.judge(one.length, usual) if one.length is not None else None
                yield one if refusal is None else replace(one, outcome=refusal)
            waiting.clear()
    for one in waiting:
        yield one


async def _trained(
    group: Group, retain: bool, trial: bool, bring: bool, accuracy: bool, ordered: Ordered
) -> AsyncIterator[MemberResult]:
    request = group.request
    # With the program's name: a survey of a profile and a training may have the same round and group.
    prefix = f"{request.run_id}/{request.round}/{request.group}/{request.program}"
    ahead = AHEAD_PER_NODE * len({member.node for member in request.members})
    most = request.max_model_bytes
    bring = bring and most < pipes.LEAST_BYTES and ahead * most <= MOST_BROUGHT_BYTES
    waiting = deque(enumerate(request.members))
    window: deque[tuple[int, Member, str, PendingOrder]] = deque()
    if request.attempt and group.program.aggregates and not retain:
        # Nodes forget the models that they made for a manager that was lost.
        await group.orders.recall(f"{prefix}/", ())
    while waiting or window:
        while waiting and len(window) < ahead:
            position, member = waiting.popleft()
            # Named by the client: a model retained in one survey must not be that of another client in the next one.
            model_id = f"{prefix}/{member.client}.{request.attempt}"
            # A start that only one member of a node needs may be trained in place.
            start = group.given_start(member, keep=not group.is_alone(member))
            work = Train(
                start,
                model_id,
                request.training,
                request.reveal,
                retain,
                trial,
                bring=bring and member.weight > 0,
                outgoing=request.outgoing,
                aside=request.results is Results.KEPT,
                measure_accuracy=accuracy,
            )
            key = group.orders.key(request.program, position, request.attempt)
            pending = group.orders.submit(member, key, work, patient=True)
            window.append((position, member, model_id, pending))
            if not work.bring:
                ordered(member, model_id, pending)
        position, member, model_id, pending = window.popleft()
        outcome = await group.orders.outcome(pending, in_turn=False, beside=lambda: [order for *_, order in window])
        if isinstance(outcome, Trained):
            outcome = group.models.arrived(model_id, outcome)
        else:
            group.orders.cancel(pending)
            outcome = outcome if isinstance(outcome, Failure) else Failure(FailureCode.BAD_ORDER, "no model reported")
        yield MemberResult(position, member, model_id, outcome, pending)
