"""Sizes and limits of client discriminators, the networks that tell clients' data apart (FedCollab)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: Number of hidden units.
HIDDEN = 200
#: Largest number of features of a sample. A task with more features must define an encoder (`Task.features`).
MOST_FEATURES = 1 << 14
#: Larger weights are refused, because an average with them could overflow.
LARGEST = 1e6
#: The distance of two clients if no discriminator could be trained: the largest, so that they are not grouped.
UNKNOWN = 1.0
#: Largest size of all networks in one process, in bytes.
MOST_BYTES = 8 * 1024**3


@dataclass(frozen=True, slots=True)
class Estimate:
    """How the distance of two clients is made from judgements of their network."""

    #: Which judgements count: the mean of those since the best one, at most `patience`; the last one; or the best one.
    judgements: Literal["window", "last", "largest"]
    #: 2: a second network is trained on samples that the first one has not seen, and the mean of both counts.
    folds: int = 1
    #: Whether a distance is made smaller by what may be chance.
    shrunk: bool = False


#: Name -> estimate. Algorithm 1 of the paper takes the last judgement, the code of its authors the largest one.
ESTIMATES: Mapping[str, Estimate] = {
    "cross-fitted": Estimate("window", folds=2, shrunk=True),
    "last": Estimate("last"),
    "largest": Estimate("largest"),
}


def most_bytes(networks: int, outputs: int, labels: int) -> int:
    """Largest size in bytes of float32 networks with `outputs` outputs each, for data with `labels` classes."""
    floats = networks * (HIDDEN * (MOST_FEATURES + labels + 2 + outputs) + outputs)
    return 4 * floats + 64  # tensors are padded
