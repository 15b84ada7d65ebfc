"""One global model: the mean of the groups' models, with FedFusion's gamma smoothed over the rounds (section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.settings.fields import setting
from fedgsp.trainings import GAMMA
from fedgsp.weights import Weights
from top_server.merging.base import GroupModel, MergeSettings, State
from top_server.merging.one_model import OneModel
from top_server.models import Changes


@dataclass(frozen=True, slots=True)
class SmoothedOptions:
    """Options of merge `smoothed-mean`."""

    mu: float = setting(0.9, "share of gamma that remains from the rounds before", least=0, below=1)
    weighted: bool = setting(True, "whether the groups' models count by their training samples")


class SmoothedModel(OneModel):
    """gamma_r = (1 - mu) mean gamma + mu gamma_{r-1}, with gamma_0 = 0; all other tensors are the mean.

    A model without gamma (the operator conv) is the mean. Gamma is kept in float64.
    """

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings, partial(Mean, weighted=settings.options.weighted))
        self._gamma: NDArray[np.float64] | None = None
        self._fused = False

    def state(self) -> State:
        """Gamma after the last round."""
        return {}, {} if self._gamma is None else {GAMMA: self._gamma}

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """The same."""
        self._gamma = np.array(tensors[GAMMA], np.float64) if GAMMA in tensors else None

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """Folds the model of a group into the mean."""
        assert group.weights is not None
        self._fused = GAMMA in group.weights.arrays
        return super().fold(round_number, group)

    def merged(self) -> Weights:
        """The mean, with the gamma of this round."""
        assert isinstance(self._mean, Mean)
        return self._mean.result(self._smooth if self._fused else None)

    def _smooth(self, spec: TensorSpec, mean: NDArray[np.float64]) -> None:
        if spec.name == GAMMA:
            before = np.zeros_like(mean) if self._gamma is None else self._gamma
            mean[...] = (1 - self.settings.options.mu) * mean + self.settings.options.mu * before
            self._gamma = mean.copy()
