"""One global model: the mean of the groups' models, plain or weighted by samples, or their median or trimmed mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from fedgsp.aggregation import Average
from fedgsp.robust import TrimmedMean
from fedgsp.weights import Weights
from top_server.evidence import Evidence
from top_server.merging.base import GroupModel, MergeSettings, Merging, Starts
from top_server.models import GLOBAL, INITIAL, Changes, Held, Holdings, Made


class OneModel(Merging):
    """All groups start from the global model. Their results are folded in the order of the groups."""

    shared: ClassVar[bool] = True

    def __init__(self, settings: MergeSettings, average: Callable[[], Average]) -> None:
        super().__init__(settings)
        self._average = average
        self._mean = average()

    def prepare(self, slots: Mapping[str, Held]) -> Changes:
        """The initial model becomes the global model."""
        return {GLOBAL: slots[INITIAL], INITIAL: None}

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Begins a new mean."""
        self._mean = self._average()
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
        merged = self._result()
        self._mean = self._average()  # does not hold on to the groups' models
        return {GLOBAL: Made(self.model_id(round_number, GLOBAL), merged)}

    def _result(self) -> Weights:
        return self._mean.result()

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The global model, whoever asks: all clients use the same one."""
        return slots[GLOBAL]


class TrimmedModel(OneModel):
    """The mean without the extreme values of every coordinate; option `trim` is the share left out at either end."""

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings, lambda: TrimmedMean(settings.options.trim))
