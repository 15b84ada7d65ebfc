"""One global model: an average of the groups' models."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.averages import Average, Mean
from fedgsp.means.ida import INTRAC, IdaOptions
from fedgsp.messages import TensorSpec
from fedgsp.settings.fields import setting
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import GAMMA
from top_server.evidence import Evidence
from top_server.merging.base import GroupModel, MergeSettings, Merging, Starts, State
from top_server.models import GLOBAL, INITIAL, Changes, Held, Holdings, Made


@dataclass(eq=False)
class OneModel(Merging):
    """All groups start from the global model. Their results are folded in the order of the groups."""

    shared: ClassVar[bool] = True

    #: Makes a new average, to which the groups' models are added.
    average: Callable[[], Average]

    def __post_init__(self) -> None:
        self._mean = self.average()

    def prepare(self, slots: Mapping[str, Held]) -> Changes:
        """The initial model becomes the global model."""
        return {GLOBAL: slots[INITIAL], INITIAL: None}

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Begins a new mean."""
        self._mean = self.average()
        return {}

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The global model."""
        return ((holdings.slots[GLOBAL], 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """Folds the model of a group into the mean."""
        assert group.weights is not None
        self._mean.fold(group.weights, group.samples)
        return {}

    def finish(self, round_number: int) -> Changes:
        """The mean becomes the global model."""
        merged = self.merged()
        self._mean = self.average()  # does not hold on to the groups' models
        return {GLOBAL: Made(self.model_id(round_number, GLOBAL), merged)}

    def merged(self) -> Weights:
        """The next global model, of the models that were folded; called once in a round."""
        return self._mean.result()

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The global model, for every client."""
        return slots[GLOBAL]


@dataclass(frozen=True, slots=True)
class IdaMergeOptions(IdaOptions):
    """Options of merge `ida`."""

    def __post_init__(self) -> None:
        if self.times == INTRAC:
            raise ValueError("times=intrac needs the training accuracy of each model, which a group's model has not")


@dataclass(frozen=True, slots=True)
class SmoothedOptions:
    """Options of merge `smoothed-mean`."""

    mu: float = setting(0.9, "share of gamma that remains from the rounds before", least=0, below=1)
    weighted: bool = setting(True, "whether the groups' models count by their training samples")


class SmoothedModel(OneModel):
    """The mean, with FedFusion's gamma smoothed over the rounds (section 6).

    gamma_r = (1 - mu) mean gamma + mu gamma_{r-1}, with gamma_0 that of the initial model: 0 unless a file says
    otherwise. All other tensors are the mean. A model without gamma (the operator conv) is the mean. Gamma is kept in
    float64.
    """

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings, partial(Mean, weighted=settings.options.weighted))
        self._gamma: NDArray[np.float64] | None = None

    def state(self) -> State:
        """Gamma after the last round."""
        return {}, {} if self._gamma is None else {GAMMA: self._gamma}

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """The same."""
        self._gamma = np.array(tensors[GAMMA], np.float64) if GAMMA in tensors else None

    def reads(self, evidence: Evidence) -> Iterable[str]:
        """The global model, as long as no gamma is known."""
        return (GLOBAL,) if self._gamma is None else ()

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Begins a new mean; before the first one, gamma is that of the initial model."""
        if self._gamma is None and GAMMA in weights[GLOBAL].arrays:
            self._gamma = np.array(weights[GLOBAL].arrays[GAMMA], np.float64)
        return super().begin(round_number, evidence, weights)

    def merged(self) -> Weights:
        """The mean, with the gamma of this round."""
        assert isinstance(self._mean, Mean)
        return self._mean.result(self._smooth)

    def _smooth(self, spec: TensorSpec, mean: NDArray[np.float64]) -> None:
        if spec.name == GAMMA:
            assert self._gamma is not None
            mean[...] = (1 - self.settings.options.mu) * mean + self.settings.options.mu * self._gamma
            self._gamma = mean.copy()
