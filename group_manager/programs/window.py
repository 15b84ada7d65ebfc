"""Training orders to many members, only so many ahead of the one that is waited for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator

from fedgsp import windows
from fedgsp.messages import Failure, FailureCode, Member, Train, Trained
from group_manager.group import Group
from group_manager.members import Ticket

#: Results in training or waiting to be taken, per node: bounds memory whatever the number of members.
AHEAD_PER_NODE = 4
#: Results that come unasked are not more than so many bytes together; the others are asked for one by one.
MOST_BROUGHT_BYTES = 64 << 20


async def train_all(
    group: Group, retain: bool = False, trial: bool = False, bring: bool = False
) -> AsyncIterator[tuple[int, Member, str, Trained | Failure]]:
    """Every member trains from its start; yields (position, member, model id, outcome) in the order of the members.

    To `bring`: whoever is weighed brings its model here, if models are small; those worth a window are asked for.
    """
    request = group.request
    members_of = Counter(member.node for member in request.members)
    # What a profile lets clients train, and what the round does, may have the same group and position.
    prefix = f"{request.run_id}/{request.round}/{request.group}/{request.program}"
    ahead = AHEAD_PER_NODE * len(members_of)
    most = request.max_model_bytes
    small = most < windows.LEAST_BYTES and ahead * most <= MOST_BROUGHT_BYTES
    waiting = deque(enumerate(request.members))
    window: deque[tuple[int, Member, str, Ticket]] = deque()
    if request.attempt and request.program == "parallel" and not retain:
        # What another manager had made, and cannot tell of any more.
        await group.recall(f"{prefix}/", ())
    while waiting or window:
        while waiting and len(window) < ahead:
            position, member = waiting.popleft()
            # Named by the client: what one keeps of a survey stays when another is asked the same in the same place.
            model_id = f"{prefix}/{member.client}.{request.attempt}"
            start = group.start_of(member, keep=members_of[member.node] > 1)  # one alone may train it in place
            brings = bring and small and member.weight > 0
            work = Train(start, model_id, request.training, request.reveal, retain, trial, brings)
            ticket = group.submit(member, group.key(request.program, position, request.attempt), work)
            window.append((position, member, model_id, ticket))
        position, member, model_id, ticket = window.popleft()
        outcome = await group.outcome(ticket, in_turn=False)
        if isinstance(outcome, Trained):
            outcome = group.arrived(model_id, outcome)
        else:
            group.cancel(ticket)
            outcome = outcome if isinstance(outcome, Failure) else Failure(FailureCode.BAD_ORDER, "no model reported")
        yield position, member, model_id, outcome
