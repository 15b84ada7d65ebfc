"""Weighings: how much each member counts in the mean of its group."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.parts import NoOptions, Part, Parts

Sizes = NDArray[np.integer]
Evidence = Mapping[str, NDArray[np.floating]]
Floats = NDArray[np.float64]

#: FedFA uses this value in place of an accuracy of 0, whose logarithm is infinite.
_LEAST_ACCURACY = 1e-7


def samples(sizes: Sizes, evidence: Evidence, options: NoOptions) -> Floats:
    """The members' training samples (FedAvg)."""
    return _weights(sizes.astype(np.float64))


def uniform(sizes: Sizes, evidence: Evidence, options: NoOptions) -> Floats:
    """Every member counts the same."""
    return np.ones(len(sizes))


def fedfa(sizes: Sizes, evidence: Evidence, options: NoOptions) -> Floats:
    """-log2 of `train_accuracy`, the group model's accuracy on the member's training data (FedFA as in HCCT)."""
    accuracy = _column("fedfa", evidence, "train_accuracy")
    return _weights(-np.log2(np.where(accuracy == 0, _LEAST_ACCURACY, accuracy)))


def maxfl(sizes: Sizes, evidence: Evidence, options: NoOptions) -> Floats:
    """s * (1 - s) with s = sigmoid(`train_loss` - `prior_loss`) (MaxFL).

    `train_loss` is the loss of the group's model on the member's training data, `prior_loss` the loss of the
    model that the member trained alone. The weight is largest if both losses are equal.
    """
    with np.errstate(invalid="ignore"):  # of two infinite losses the difference is NaN, as wanted
        gap = _column("maxfl", evidence, "train_loss") - _column("maxfl", evidence, "prior_loss")
    tail = np.exp(-np.abs(gap))  # s * (1 - s) by the smaller of the two: no overflow, and no digits lost
    return _weights(tail / (1 + tail) ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing(Part):
    """The declaration of a weighing. `everybody`: whether each member counts at least a little.

    Its `code` is a pure function, weights = code(sizes, evidence, options).

    The members are the clients of a group, present or not: a client may come back before the group begins. `sizes`
    are their training samples as they told them last, shape (M,); `evidence` has named columns of shape (M,) from the
    scheme's profile, NaN for a member of which nothing is known. The weights, shape (M,), are finite numbers of at
    least 0, which need not add up to 1; members of weight 0 do not count, and if all have weight 0, the group keeps
    its model. It is called once for each group of a round, in the event loop, and keeps nothing. The same arguments
    must give the same weights, bit for bit. It raises ConfigError if evidence is missing.
    """

    everybody: bool = False

    def __call__(self, sizes: Sizes, evidence: Evidence, given: Mapping[str, str]) -> Floats:
        """The weights of the members of a group; raises RunError for a fault of the part."""
        with self.guard():
            weights: Floats = self.load()(sizes, evidence, self.read(given))
            if np.shape(weights) != sizes.shape or not np.isfinite(weights).all() or (weights < 0).any():
                raise ValueError(f"its weights are {weights!r} for {len(sizes)} members")
        return weights


_BUILT_IN = {
    # Members of a chain are not weighed.
    "fedfa": Weighing(
        help="clients on which the global model is less accurate count more",
        code=fedfa,
        needs={"program": ("parallel",), "profile": ("training-accuracy",)},
    ),
    "maxfl": Weighing(
        help="clients that are near to gaining by the global model count more",
        code=maxfl,
        needs={"program": ("parallel",), "profile": ("prior-losses",)},
    ),
    "samples": Weighing(help="by training samples", code=samples, everybody=True),
    "uniform": Weighing(help="all clients count alike", code=uniform, everybody=True),
}

WEIGHINGS: Parts[Weighing] = Parts("weighing", _BUILT_IN, Weighing)


def _column(weighing: str, evidence: Evidence, name: str) -> Floats:
    if name not in evidence:
        raise ConfigError(f"weighing {weighing} needs {name} of every member", "use a scheme whose clients report it")
    return np.asarray(evidence[name], np.float64)


def _weights(values: Floats) -> Floats:
    weights = np.fmax(values, 0.0)  # NaN becomes 0
    return weights if weights.any() else np.ones_like(weights)
