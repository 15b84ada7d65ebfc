"""One global model that moves by a server optimiser: FedAdagrad, FedAdam and FedYogi.

S. Reddi and others, Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295), Algorithm 2. With w the global
model of the round before and D the mean of the groups' results minus w, for every element of every parameter:

    m <- beta1 m + (1 - beta1) D                             at first 0
    v <- v + D^2                                             FedAdagrad; at first tau^2
    v <- beta2 v + (1 - beta2) D^2                           FedAdam
    v <- v - (1 - beta2) D^2 sign(v - D^2)                   FedYogi
    w <- w + eta m / (sqrt(v) + tau)

There is no bias correction. All of it is in float64, with one cast at the end. Buffers, such as the statistics of
batch normalisation, become the mean itself.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import RunError
from fedgsp.means.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.settings.fields import setting
from fedgsp.tensors.spill import spilling_room, walk
from fedgsp.tensors.weights import Weights, WeightsError, check_finite
from top_server.evidence import Evidence
from top_server.merging.base import GroupModel, MergeSettings, State
from top_server.merging.one_model import OneModel
from top_server.models import GLOBAL, Changes

Floats = NDArray[np.float64]

_BLOCK = 1 << 15  # elements: a block of all arrays fits into the processor's cache


@dataclass(frozen=True, slots=True)
class AdagradOptions:
    """Options of merge `fedadagrad`; tau and beta1 as in the paper's experiments, eta the middle of their grid."""

    eta: float = setting(0.01, "step size of the server", above=0)
    tau: float = setting(1e-3, "added to the root of v; the larger, the less the steps adapt", above=0)
    beta1: float = setting(0.0, "share of the earlier changes in m", least=0, below=1)
    weighted: bool = setting(False, "true: groups count by their training samples; false: alike")


@dataclass(frozen=True, slots=True)
class AdamOptions(AdagradOptions):
    """Options of merges `fedadam` and `fedyogi`; beta1 and beta2 as in the paper's experiments."""

    beta1: float = setting(0.9, "share of the earlier changes in m", least=0, below=1)
    beta2: float = setting(0.99, "share of the earlier squares in v", least=0, below=1)


#: Changes v in place, given D^2, which may be overwritten, and the options.
Second = Callable[[Floats, Floats, Any], None]


def adagrad(v: Floats, squares: Floats, options: AdagradOptions) -> None:
    """The sum of all squares."""
    v += squares


def adam(v: Floats, squares: Floats, options: AdamOptions) -> None:
    """The exponential mean of the squares."""
    squares *= 1 - options.beta2
    v *= options.beta2
    v += squares


def yogi(v: Floats, squares: Floats, options: AdamOptions) -> None:
    """A step towards the square whose length depends on the square, and not on v."""
    sign = np.sign(v - squares)
    squares *= 1 - options.beta2
    squares *= sign
    v -= squares


class ServerOptimiser(OneModel):
    """All groups start from the global model, and their mean says in which direction the global model moves.

    A round whose results all are the global model itself, because no member with a weight trained, changes nothing:
    neither the model, which m would move, nor m and v.
    """

    def __init__(self, settings: MergeSettings, second: Second) -> None:
        super().__init__(settings, partial(Mean, weighted=settings.options.weighted))
        self._second = second
        #: "m NAME" and "v NAME" of every parameter, flat.
        self._moments: dict[str, Floats] = {}

    def reads(self, evidence: Evidence) -> Iterable[str]:
        """The global model."""
        return (GLOBAL,)

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Begins a new mean, and notes the model that the round begins with."""
        self._before, self._moved = weights[GLOBAL], False
        return super().begin(round_number, evidence, weights)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """Folds the model of a group into the mean."""
        assert group.weights is not None
        self._moved = self._moved or group.weights.digest != self._before.digest
        return super().fold(round_number, group)

    def finish(self, round_number: int) -> Changes:
        """The global model moves. Raises RunError if it is not finite then."""
        changes = super().finish(round_number) if self._moved else {}
        del self._before
        return changes

    def merged(self) -> Weights:
        """The global model after the step."""
        assert isinstance(self._mean, Mean)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = self._mean.result(self._step)
        try:
            check_finite(moved)
        except WeightsError as error:
            raise RunError(
                f"the global model diverged ({error.failure.detail})",
                "give a smaller --merge-option eta or --learning-rate",
            ) from error
        return moved

    def state(self) -> State:
        """m and v of every parameter."""
        names = [name.removeprefix("m ") for name in self._moments if name.startswith("m ")]
        return {"parameters": names}, dict(self._moments)

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """The same."""
        names = [f"{kind} {name}" for name in saved["parameters"] for kind in "mv"]
        self._moments = {name: _restored(tensors[name]) for name in names}

    def _step(self, spec: TensorSpec, mean: Floats) -> None:
        """Replaces the mean of a parameter by its next value, block by block; changes m and v."""
        if not spec.trainable:
            return
        options: AdagradOptions = self.settings.options
        at_first = {f"m {spec.name}": 0.0, f"v {spec.name}": options.tau**2}
        if not at_first.keys() <= self._moments.keys():
            self._moments.update((name, _filled(len(mean), value)) for name, value in at_first.items())
        arrays = (mean, self._before.arrays[spec.name].reshape(-1), *(self._moments[name] for name in at_first))
        for change, before, m, v in zip(*(walk(one, _BLOCK * one.itemsize) for one in arrays), strict=True):
            change -= before
            m *= options.beta1
            m += (1 - options.beta1) * change
            change *= change
            self._second(v, change, options)
            change[...] = options.eta * m
            change /= np.sqrt(v) + options.tau
            change += before


def _room(size: int) -> Floats:
    return spilling_room(8 * size).view(np.float64)


def _filled(size: int, value: float) -> Floats:
    made = _room(size)
    for piece in walk(made):
        piece[...] = value
    return made


def _restored(array: NDArray[np.generic]) -> Floats:
    if array.dtype != np.float64 or array.ndim != 1:
        raise ValueError(f"{array.dtype}{list(array.shape)} is no array of m or v")
    made = _room(len(array))
    made[...] = array
    return made
