"""Aggregations of models that members trained in parallel from one start: the code of `fedgsp.aggregations`."""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.means import robust
from fedgsp.means.averages import Average, Mean, check_weight
from fedgsp.means.ida import INTRAC, Ida, IdaOptions
from fedgsp.messages import TensorSpec, Trained
from fedgsp.parts import NoOptions
from fedgsp.tensors.weights import Weights


class Aggregation(abc.ABC):
    """The protocol of aggregations: combines the models that the members of a group trained in parallel into one.

    There is one object for each group and round; nothing is kept for the next round. `fold` is called once for each
    model, in the order of the members whatever the order in which they finished, then `result` once, unless nothing
    was folded. The calls come one at a time, from different threads. The same calls must give the same bits: take no
    random numbers, and sum in a fixed order. A group whose manager was lost is aggregated again from the beginning.
    """

    #: Whether nodes report how accurate each trained model is on the samples that it was trained on
    #: (`Trained.train_accuracy`).
    needs_accuracy: bool = False
    #: Whether the result is `averages.Mean`, by the weights: then large models may be folded block by block.
    by_blocks: bool = False

    @property
    @abc.abstractmethod
    def empty(self) -> bool:
        """Whether nothing was folded."""

    def take(self, weights: Weights, weight: float, trained: Trained) -> None:
        """Add a model with the report of the node that trained it: `fold`, unless it reads more than the steps.

        Raises ValueError as `fold` does.
        """
        self.fold(weights, weight, trained.steps)

    @abc.abstractmethod
    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Add a model with `weight` > 0 that was trained for `steps` local steps.

        The model must not be changed. It may be kept until `result`: keep `weights.at_rest()`, which has a large model
        in a file and not in memory.

        Raises ValueError if the model cannot be added; its member is then skipped.
        """

    @abc.abstractmethod
    def result(self, start: Weights | None) -> Weights:
        """The group's model. The aggregation is not used afterwards. Raises ValueError if no model was folded.

        `start` is the model that the members started from, if the declaration says `needs_start`.
        """


class _ByAverage(Aggregation):
    """An aggregation whose models are held by one average."""

    _mean: Average

    @property
    def empty(self) -> bool:
        return self._mean.empty

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model with its weight, which medians and trimmed means only check; local steps do not matter."""
        check_weight(weight)
        self._mean.fold(weights, weight)

    def result(self, start: Weights | None) -> Weights:
        return self._mean.result()


class WeightedMean(_ByAverage):
    """The weighted mean of the models (FedAvg)."""

    by_blocks = True

    def __init__(self, options: NoOptions) -> None:
        self._mean = Mean(weighted=True)


class FedNova(_ByAverage):
    """FedNova: w + tau_eff * sum p_k (w_k - w) / tau_k, with tau_eff = sum p_k tau_k.

    Each update is normalised by its number of local steps tau_k. The result lies on the line from the start w through
    the mean with weights p_k / tau_k, usually beyond that mean. Buffers, such as those of batch normalisation, get the
    mean itself: beyond it a variance could be negative.
    """

    _mean: Mean

    def __init__(self, options: NoOptions) -> None:
        self._mean = Mean(weighted=True)
        self._weight = self._weight_per_step = self._weighted_steps = 0.0

    def fold(self, weights: Weights, weight: float, steps: float) -> None:
        """Adds a model; `steps` is tau_k, the normalised number of its local steps."""
        if not steps > 0:
            raise ValueError(f"it says that it took {steps} local steps")
        self._mean.fold(weights, weight / steps)
        self._weight += weight
        self._weight_per_step += weight / steps
        self._weighted_steps += weight * steps

    def result(self, start: Weights | None) -> Weights:
        """Computed in float64, and rounded once."""
        if self.empty:
            raise ValueError("no model was folded")
        assert start is not None
        reach = self._weighted_steps * self._weight_per_step / self._weight**2

        def step(spec: TensorSpec, mean: NDArray[np.float64]) -> None:
            if spec.trainable:
                before: NDArray[Any] = start.arrays[spec.name].reshape(-1)
                mean -= before
                mean *= reach
                mean += before

        return self._mean.result(step)


class InverseDistance(_ByAverage):
    """The mean in which models far from the plain mean count less (IDA); options `times` and `norm`."""

    _mean: Ida

    def __init__(self, options: IdaOptions) -> None:
        self._mean = Ida(options)
        self.needs_accuracy = options.times == INTRAC

    def take(self, weights: Weights, weight: float, trained: Trained) -> None:
        """Keeps the model until the result, with its training accuracy."""
        self._mean.fold(weights, weight, trained.train_accuracy)


class Median(_ByAverage):
    """The median of every coordinate; all models count alike."""

    def __init__(self, options: NoOptions) -> None:
        self._mean = robust.Median()


class TrimmedMean(_ByAverage):
    """The mean of every coordinate without its extreme values; all models count alike."""

    def __init__(self, options: robust.TrimOptions) -> None:
        self._mean = robust.TrimmedMean(options.trim)


def make(name: str, options: Mapping[str, str]) -> Aggregation:
    """The aggregation that a request names, or the mean if it names none; raises UserError if it cannot be made."""
    part = AGGREGATIONS[name or "mean"]
    with part.guard():
        made: Aggregation = part.load()(part.read(options))
    return made
