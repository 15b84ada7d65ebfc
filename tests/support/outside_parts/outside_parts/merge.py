"""A merge into one model that moves slowly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.averages import Mean
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.merging.base import GroupModel, MergeSettings, Merging, Starts, State
from top_server.models import GLOBAL, INITIAL, Changes, Held, Holdings, Made


class SlowMean(Merging):
    """The global model moves a share of the way to the groups' mean; its exact value is kept in float64."""

    shared = True

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings)
        self._exact: dict[str, NDArray[np.float64]] = {}

    def prepare(self, slots: Mapping[str, Held]) -> Changes:
        """The initial model becomes the global model."""
        return {GLOBAL: slots[INITIAL], INITIAL: None}

    def reads(self, evidence: Evidence) -> Iterable[str]:
        """The global model."""
        return (GLOBAL,)

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Begins a mean."""
        self._mean = Mean(weighted=True)
        if not self._exact:
            self._exact = {name: array.astype(np.float64) for name, array in weights[GLOBAL].arrays.items()}
        return {}

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The global model."""
        return ((holdings.slots[GLOBAL], 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """Adds a group's model."""
        assert group.weights is not None
        self._mean.fold(group.weights, group.samples)
        return {}

    def finish(self, round_number: int) -> Changes:
        """Moves the global model."""
        mean = self._mean.result()
        for name, array in mean.arrays.items():
            self._exact[name] += self.settings.options.share * (array.astype(np.float64) - self._exact[name])
        arrays = {name: self._exact[name].astype(array.dtype) for name, array in mean.arrays.items()}
        return {GLOBAL: Made(self.model_id(round_number, GLOBAL), Weights.of(arrays, mean.tensors))}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The global model."""
        return slots[GLOBAL]

    def state(self) -> State:
        """The exact model."""
        return {}, self._exact

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """The same."""
        self._exact = {name: tensor.astype(np.float64, casting="no") for name, tensor in tensors.items()}


class FailingMerge(SlowMean):
    """Raises an exception when a group has trained."""

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """Raises ZeroDivisionError."""
        raise ZeroDivisionError("nothing can be merged here")
