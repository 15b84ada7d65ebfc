"""Initialise: fresh weights with the tensors of the run, which two nodes have made alike.

All nodes make the same weights from one seed, so a single node cannot put others in their place. Nodes with other
processors or versions of torch may differ in the last bits.
"""

import asyncio
import itertools
from collections import defaultdict, deque

from fedgsp.messages import Failure, GroupResult, Initialise, Member, Trained
from fedgsp.seeds import derive
from fedgsp.tensors.weights import Weights
from group_manager.group import Group
from group_manager.sessions import Outcome, PendingOrder

#: So many nodes must make the same weights.
ALIKE = 2
#: If no node answers for so many seconds, one more is asked: an order may take as long as its deadline allows.
PATIENCE_S = 10.0


async def run(group: Group) -> GroupResult | Failure:
    """Takes the weights that two nodes have made alike or, if no two of all members have, the first weights.

    Members are asked in their order, and only as many as are needed. The top server learns what each has made. The
    reason for which a member is skipped names its node: all other nodes would have made the same.
    """
    makers = _Makers(group)
    try:
        await makers.ask()
    finally:
        makers.close()
    for member, model_id in makers.candidates():
        weights = await group.models.collect(model_id, group.request.tensors)
        if isinstance(weights, Weights):
            return group.result(weights.ref(model_id))
        group.reports.skipped(member, Failure(weights.code, f"of node {member.node}: {weights.detail}"))
    return group.reports.reason


class _Makers:
    """The members that are asked for fresh weights, and those that have made some."""

    def __init__(self, group: Group) -> None:
        self._group = group
        first: dict[str, tuple[int, Member]] = {}  # of each node
        for position, member in enumerate(group.request.members):
            first.setdefault(member.node, (position, member))
        self._waiting = deque(first.values())
        self._asked: dict[asyncio.Task[Outcome], tuple[int, Member, PendingOrder]] = {}
        self._made: defaultdict[bytes, dict[int, tuple[Member, str]]] = defaultdict(dict)  # by digest and position

    async def ask(self) -> None:
        """Asks members until enough have made the same, or all have answered."""
        slow = 0
        while (lacking := ALIKE - max(map(len, self._made.values()), default=0)) > 0:
            while self._waiting and len(self._asked) < lacking + slow:
                self._order(*self._waiting.popleft())
            if not self._asked:
                return
            ended, _ = await asyncio.wait(self._asked, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            slow += not ended
            for task in sorted(ended, key=lambda task: self._asked[task][0]):
                self._note(*self._asked.pop(task), task.result())

    def candidates(self) -> list[tuple[Member, str]]:
        """Members and the models that they made, in the order of the members: only those that enough have made."""
        most = max(self._made.values(), key=len, default={})
        found = [most] if len(most) >= ALIKE else list(self._made.values())
        return [made for _, made in sorted(itertools.chain(*(one.items() for one in found)))]

    def close(self) -> None:
        """Calls off the orders that are not needed any more."""
        for task, (_, _, pending) in self._asked.items():
            task.cancel()
            if not pending.outcome.done():
                self._group.orders.cancel(pending)

    def _order(self, position: int, member: Member) -> None:
        request, orders = self._group.request, self._group.orders
        assert request.training is not None
        # Another seed for every group number: schemes with several models must not start from equal ones.
        seed = derive(request.training.seed, "initial-weights", *((request.group,) if request.group else ()))
        work = Initialise(self._model_id(position), seed)
        pending = orders.submit(member, orders.key("initialise", position, request.attempt), work)
        self._asked[asyncio.create_task(orders.outcome(pending, in_turn=False))] = position, member, pending

    def _note(self, position: int, member: Member, pending: PendingOrder, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._group.reports.skipped(member, outcome)
            return
        assert isinstance(outcome, Trained)  # `Members` has turned all else into failures
        assert outcome.ref is not None
        self._group.reports.done(member, position, outcome, pending)
        self._made[outcome.ref.digest][position] = member, self._model_id(position)

    def _model_id(self, position: int) -> str:
        # With the attempt: a node that was asked before has a ticket to upload a model of that name.
        request = self._group.request
        return f"{request.run_id}/{request.round}/initial-{request.group}.{request.attempt}.{position}"
