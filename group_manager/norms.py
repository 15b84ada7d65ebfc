"""Whether an update is much longer than others: what a client that diverged, or means harm, hands on."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgsp.messages import Failure, FailureCode, Member, Trained
from fedgsp.updates import trainable
from fedgsp.weights import Weights
from group_manager.group import Group

#: Updates that must have been seen before any is judged.
LEAST = 3


class Lengths:
    """Those of updates that were taken, by which others are judged."""

    def __init__(self, taken: Iterable[float], most_ratio: float) -> None:
        self._taken = list(taken)
        self._most_ratio = most_ratio

    def usual(self, waiting: Sequence[float]) -> float | None:
        """The median that updates which `waiting` have these lengths are judged by; None while too few are known."""
        known = self._taken if len(self._taken) >= LEAST else [*self._taken, *waiting]
        return statistics.median(known) if len(known) >= LEAST else None

    def judge(self, found: float, usual: float) -> Failure | None:
        """Refuses an update of too many times the usual length; what is not refused counts from now on."""
        if found > self._most_ratio * usual:
            ratio = f"more than {self._most_ratio:g} times the median, {usual:.3g}"
            detail = f"its update has length {found:.3g}, {ratio}"
            return Failure(FailureCode.LONG_UPDATE, detail)
        self._taken.append(found)
        return None


class Norms(Lengths):
    """Those of one group, and of rounds before."""

    def __init__(self, group: Group) -> None:
        request = group.request
        before = [hop.update_length for hop in request.finished if hop.update_length]
        super().__init__([*request.update_lengths, *before], request.most_update_ratio)
        self._group = group
        self._last: tuple[str, Weights] | None = None

    async def measure(self, start_id: str, model_id: str) -> float | Failure:
        """Length of what training changed; the model is brought here, as is its start, if they are not here."""
        group, request = self._group, self._group.request
        if self._last is not None and self._last[0] == start_id:
            start: Weights | Failure = self._last[1]
        else:
            start = await group.collect(start_id, request.tensors)
            if request.program == "alone" and (request.start is None or start_id != request.start.id):
                group.forget_here(start_id)
        model = await group.collect(model_id, request.tensors)
        if isinstance(start, Failure):
            return start
        if isinstance(model, Failure):
            return model
        # A relay goes on from what was made; other programs from what they started with.
        self._last = (model_id, model) if request.program == "relay" else (start_id, start)
        return await asyncio.to_thread(length, start, model)


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a member's order, and the length of its update if that was looked at."""

    position: int
    member: Member
    model_id: str
    outcome: Trained | Failure
    length: float | None = None


async def judged(
    group: Group, results: AsyncIterator[tuple[int, Member, str, Trained | Failure]]
) -> AsyncIterator[Judged]:
    """The same results, in their order; an update that counts and is too long is a failure, if the run has a limit.

    The first ones are held back until there are enough to compare them with.
    """
    request = group.request
    norms = Norms(group) if request.most_update_ratio else None
    waiting: list[Judged] = []
    async for result in results:
        one = Judged(*result)
        if norms is None:
            yield one
            continue
        if isinstance(one.outcome, Trained) and one.member.weight > 0:
            start = one.member.start.ref if one.member.start is not None else request.start
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
    """Euclidean length of what training changed, over the trainable tensors."""
    total = 0.0
    for spec in trainable(model.tensors):
        before, after = (weights.arrays[spec.name].astype(np.float64) for weights in (start, model))
        total += float(np.sum((after - before) ** 2))
    return math.sqrt(total)
