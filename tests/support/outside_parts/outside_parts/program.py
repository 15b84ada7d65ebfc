"""A program in which some members train, drawn anew in every round."""

from __future__ import annotations

import dataclasses

from fedgsp.messages import Failure, GroupResult
from fedgsp.seeds import stream
from group_manager.group import Group
from group_manager.programs import parallel


async def run(group: Group) -> GroupResult | Failure:
    """As program `parallel`, with members drawn from the seed, the round and the group."""
    request = group.request
    assert request.training is not None
    rng = stream(request.training.seed, "parallel-some", request.round, request.group)
    count = min(group.options.members, len(request.members))
    chosen = sorted(rng.choice(len(request.members), count, replace=False).tolist())
    members = tuple(request.members[position] for position in chosen)
    group.request = dataclasses.replace(request, members=members)
    return await parallel.run(group)
