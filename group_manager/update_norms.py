"""The lengths of the updates of one group, which this manager measures if the run limits them."""

import asyncio
import math

import numpy as np

from fedgsp.messages import Failure
from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights
from group_manager.group import Group


class Norms:
    """Measures the updates of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._last: tuple[str, Weights] | None = None
        #: The id of the model that could not be had at the last measurement; empty: all could.
        self.missing = ""

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
        self.missing = start_id if isinstance(start, Failure) else model_id if isinstance(model, Failure) else ""
        if isinstance(start, Failure):
            return start
        if isinstance(model, Failure):
            return model
        # In a chain the next member starts from this model; in other groups the next member may start from the same
        # start.
        self._last = (model_id, model) if group.program.chained else (start_id, start)
        return await asyncio.to_thread(length, start, model)


def length(start: Weights, model: Weights) -> float:
    """Euclidean length of the difference between both models, over all trainable tensors; computed in float64.

    The difference is not divided by the learning rate.
    """
    total = 0.0
    for spec in trainable(model.tensors):
        before, after = (weights.arrays[spec.name].astype(np.float64) for weights in (start, model))
        total += float(np.sum((after - before) ** 2))
    return math.sqrt(total)
