"""Whether an update is much longer than others: what a client that diverged, or means harm, hands on."""

from __future__ import annotations

import asyncio
import math
import statistics

import numpy as np

from fedgsp.messages import Failure, FailureCode
from fedgsp.updates import trainable
from fedgsp.weights import Weights
from group_manager.group import Group

#: Updates that must have been seen before one is judged.
LEAST = 3


class Norms:
    """Judges the updates of one group by their lengths and those of rounds before; for runs that ask for it."""

    def __init__(self, group: Group) -> None:
        request = group.request
        self._group = group
        self._lengths = list(request.update_lengths)
        self._lengths += [hop.update_length for hop in request.finished if hop.update_length]
        #: Of the update that was judged last.
        self.last = 0.0
        self._last: tuple[str, Weights] | None = None

    async def refuse(self, start_id: str | None, model_id: str) -> Failure | None:
        """Why a model is not to be gone on from; it is brought here, as is the one that it started from if unknown."""
        group = self._group
        if start_id is None:
            assert group.request.start is not None
            start_id = group.request.start.id
        start: Weights | Failure
        if self._last is not None and self._last[0] == start_id:
            start = self._last[1]
        else:
            start = await group.collect(start_id, group.request.tensors)
        model = await group.collect(model_id, group.request.tensors)
        if isinstance(start, Failure):
            return start
        if isinstance(model, Failure):
            return model
        found = await asyncio.to_thread(length, start, model)
        refusal = judge(self._lengths, found, group.request.most_update_ratio)
        self.last = found
        if refusal is None and group.request.program == "relay":  # which goes on from there
            self._last = (model_id, model)
        return refusal


def length(start: Weights, model: Weights) -> float:
    """Euclidean length of what training changed, over the trainable tensors."""
    total = 0.0
    for spec in trainable(model.tensors):
        before, after = (weights.arrays[spec.name].astype(np.float64) for weights in (start, model))
        total += float(np.sum((after - before) ** 2))
    return math.sqrt(total)


def judge(lengths: list[float], found: float, most_ratio: float) -> Failure | None:
    """Refuses an update of more than `most_ratio` times the median length; otherwise it counts from now on."""
    if len(lengths) >= LEAST:
        usual = statistics.median(lengths)
        if found > most_ratio * usual:
            detail = f"its update has length {found:.3g}, more than {most_ratio:g} times the median, {usual:.3g}"
            return Failure(FailureCode.LONG_UPDATE, detail)
    lengths.append(found)
    return None
