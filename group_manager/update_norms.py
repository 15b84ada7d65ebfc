"""The lengths of the updates of one group. This manager measures them, and rejects long ones if the run says so."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import numpy as np

from fedgsp.messages import Failure, Member, Trained
from fedgsp.updates import trainable
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.norm_limit import Lengths


class Norms(Lengths):
    """Lengths of one group, judged together with lengths of earlier rounds."""

    def __init__(self, group: Group) -> None:
        request = group.request
        before = [hop.update_length for hop in request.finished if hop.update_length]
        super().__init__([*request.update_lengths, *before], request.most_update_ratio)
        self._group = group
        self._last: tuple[str, Weights] | None = None

    async def measure(self, start_id: str, model_id: str) -> float | Failure:
        """Length of the update from a start to a model; both are brought to this manager if they are not here."""
        group, request = self._group, self._group.request
        if self._last is not None and self._last[0] == start_id:
            start: Weights | Failure = self._last[1]
        else:
            start = await group.models.collect(start_id, request.tensors)
            if not group.program.makes_model and (request.start is None or start_id != request.start.id):
                group.models.forget_copy(start_id)  # no other member starts from it
        model = await group.models.collect(model_id, request.tensors)
        if isinstance(start, Failure):
            return start
        if isinstance(model, Failure):
            return model
        # In a chain the next member starts from this model; in other groups the next member may start from the same
        # start.
        self._last = (model_id, model) if group.program.chained else (start_id, start)
        return await asyncio.to_thread(length, start, model)


@dataclass(frozen=True, slots=True)
class MemberResult:
    """The outcome of a member's training order, and the length of its update if it was measured."""

    position: int
    member: Member
    model_id: str
    outcome: Trained | Failure
    length: float | None = None


async def judged(group: Group, results: AsyncIterator[MemberResult]) -> AsyncIterator[MemberResult]:
    """The same results, in the same order. If the run limits lengths, the outcome of a too long update is a failure.

    Only updates with a weight are measured. The first results are held back until there are enough to judge them.
    """
    norms = Norms(group) if group.request.most_update_ratio else None
    waiting: list[MemberResult] = []
    async for one in results:
        if norms is None:
            yield one
            continue
        if isinstance(one.outcome, Trained) and one.member.weight > 0:
            start = one.member.start.ref if one.member.start is not None else group.request.start
            assert start is not None
            found = await norms.measure(start.id, one.model_id)
            one = replace(one, outcome=found) if isinstance(found, Failure) else replace(one, length=found)
        waiting.append(one)
        usual = norms.usual([one.length for one in waiting if one.length is not None])
        if usual is not None:
            for one in waiting:
                refusal = norms.judge(one.length, usual) if one.length is not None else None
                yield one if refusal is None else replace(one, outcome=refusal)
            waiting.clear()
    for one in waiting:
        yield one


def length(start: Weights, model: Weights) -> float:
    """Euclidean length of the difference between both models, over all trainable tensors; computed in float64.

    The difference is not divided by the learning rate.
    """
    total = 0.0
    for spec in trainable(model.tensors):
        before, after = (weights.arrays[spec.name].astype(np.float64) for weights in (start, model))
        total += float(np.sum((after - before) ** 2))
    return math.sqrt(total)
