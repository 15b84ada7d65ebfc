"""How much each member counts in the mean of its group.

A weighing takes the members' training samples (M,) and named evidence, a column (M,) each, and returns weights (M,):
numbers of at least 0, not normalised. A member whose evidence is NaN has weight 0; where all
weights would be 0 they are all 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Sizes = NDArray[np.integer]
    Evidence = Mapping[str, NDArray[np.floating]]

Floats = NDArray[np.float64]

#: What FedFA takes for an accuracy of 0, whose logarithm is infinite.
_LEAST_ACCURACY = 1e-7


def samples(sizes: Sizes, evidence: Evidence) -> Floats:
    """The members' training samples (FedAvg)."""
    return _weights(sizes.astype(np.float64))


def uniform(sizes: Sizes, evidence: Evidence) -> Floats:
    """Everybody alike."""
    return np.ones(len(sizes))


def fedfa(sizes: Sizes, evidence: Evidence) -> Floats:
    """-log2 of `train_accuracy`, the group model's accuracy on the member's training data (FedFA as in HCCT)."""
    accuracy = _column("fedfa", evidence, "train_accuracy")
    return _weights(-np.log2(np.where(accuracy == 0, _LEAST_ACCURACY, accuracy)))


def maxfl(sizes: Sizes, evidence: Evidence) -> Floats:
    """s * (1 - s) with s = sigmoid(`train_loss` - `prior_loss`): who is near to gaining by the group model (MaxFL).

    `train_loss` is that of the group model on the member's training data, `prior_loss` that of the member's own.
    """
    with np.errstate(invalid="ignore"):  # of two infinite losses the difference is NaN, as wanted
        gap = _column("maxfl", evidence, "train_loss") - _column("maxfl", evidence, "prior_loss")
    tail = np.exp(-np.abs(gap))  # s * (1 - s) by the smaller of the two: no overflow, and no digits lost
    return _weights(tail / (1 + tail) ** 2)


#: Name -> weighing(sizes, evidence), as above; ConfigError if a column of evidence is missing.
WEIGHINGS: dict[str, Callable[[Sizes, Evidence], Floats]] = {
    "fedfa": fedfa,
    "maxfl": maxfl,
    "samples": samples,
    "uniform": uniform,
}


def _column(weighing: str, evidence: Evidence, name: str) -> Floats:
    if name not in evidence:
        raise ConfigError(f"weighing {weighing} needs {name} of every member", "use a scheme whose clients report it")
    return np.asarray(evidence[name], np.float64)


def _weights(values: Floats) -> Floats:
    weights = np.fmax(values, 0.0)  # NaN becomes 0
    return weights if weights.any() else np.ones_like(weights)
