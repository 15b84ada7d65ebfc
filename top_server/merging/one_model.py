"""One global model: the mean of the groups' models, plain or weighted by their samples, or their median."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from fedgsp.aggregation import Average
from fedgsp.messages import Failure
from fedgsp.robust import TrimmedMean
from fedgsp.weights import Weights
from top_server.evidence import Evidence
from top_server.merging.base import Merging, Starts
from top_server.merging.trimming import TRIM_OPTIONS, read_trim
from top_server.models import GLOBAL, INITIAL, Held

if TYPE_CHECKING:
    from top_server.groups.task import GroupOutcome
    from top_server.run import Run


class OneModel(Merging):
    """All start from the global model; results are folded in the order of the groups, whatever the timing."""

    shared: ClassVar[bool] = True

    def __init__(self, run: Run, average: Callable[[], Average]) -> None:
        super().__init__(run)
        self._average = average
        self._mean = average()

    async def prepare(self) -> None:
        """The global model is the initial one."""
        self.run.models.point({GLOBAL: self.run.models[INITIAL]})
        self.run.models.drop(INITIAL)

    async def begin(self, round_number: int, evidence: Evidence) -> None:
        """Starts a new mean."""
        self._mean = self._average()

    def start(self, group: Iterable[int]) -> Starts:
        """The global model."""
        return ((self.run.models[GLOBAL], 1.0),)

    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """Folds a group's model."""
        weights = await self.run.take(outcome)
        if isinstance(weights, Failure):
            return weights
        await asyncio.to_thread(self._mean.fold, weights, outcome.samples)
        return None

    async def finish(self, round_number: int) -> None:
        """The mean is the global model."""
        merged = await asyncio.to_thread(self._merged)
        self._mean = self._average()  # which holds on to models no more
        self.run.models.put([GLOBAL], self.group_model_id(round_number, GLOBAL), merged)

    def of(self, client: int) -> Held:
        """The global model."""
        return self.run.models[GLOBAL]

    def _merged(self) -> Weights:
        merged = self.run.handed_on(self._mean.result()).at_rest()
        _ = merged.digest  # here and not in the event loop
        return merged


class TrimmedModel(OneModel):
    """The mean without the extreme values of every coordinate, as many as option `trim` says."""

    options: ClassVar[tuple[str, ...]] = TRIM_OPTIONS

    def __init__(self, run: Run) -> None:
        trim = read_trim("merge", run.options["merge"])
        super().__init__(run, lambda: TrimmedMean(trim))
