"""Estimates the distances between clients' data from the accuracies of client discriminators (FedCollab).

The distance of two clients is estimated by how well a network distinguishes their samples: its accuracy on one client
plus its accuracy on the other minus 1, on samples that it was not trained on (section 5.1).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgsp.discriminators import ESTIMATES, UNKNOWN
from group_manager.discrimination import Networks

Floats = NDArray[np.float64]


def distances(folds: Sequence[Networks], samples: int, estimate: str) -> tuple[Floats, Floats]:
    """The distances of the N clients of `folds`, and their standard errors; two arrays of shape (N, N).

    `folds` are the networks that were trained on the first draw of `samples` training samples per client, and those of
    the second draw if there is one. Both arrays are symmetric, in the order of the clients, with 0 on the diagonal. A
    pair that was not compared in all folds has distance UNKNOWN, which is 1, and error 0.
    """
    accuracies: Floats = np.mean([networks.accuracies() for networks in folds], axis=0)
    variances = _variances(accuracies, _judged_on(folds, samples))
    found, errors = accuracies + accuracies.T - 1, np.sqrt(variances + variances.T)
    if ESTIMATES[estimate].shrunk:
        found = shrunk(found, errors)
    unknown = np.isnan(found)
    found[unknown], errors[unknown] = UNKNOWN, 0.0
    np.fill_diagonal(found, 0.0)
    return found, errors


def shrunk(found: Floats, errors: Floats) -> Floats:
    """Distances that are smaller by the part that may be chance: d - e^2 / d, or 0 where d is at most its error e.

    This is the positive part of James and Stein's estimator, for each distance alone. Equal clients come out near 0
    however few samples they have, while a distance of many errors hardly changes. Clipping at 0 alone would leave the
    positive errors in, which add up over the pairs of a coalition.
    """
    with np.errstate(all="ignore"):
        smaller: Floats = found - np.square(errors) / found
    smaller[found <= errors] = 0.0
    return smaller


def _judged_on(folds: Sequence[Networks], samples: int) -> Floats:
    """Samples of each client that were judged in any fold, shape (N,): at most all of its samples."""
    counts = np.array([[networks.judged_on.get(client, 0) for client in networks.clients] for networks in folds])
    return np.asarray(np.minimum(counts.sum(axis=0), counts.max(axis=0) + samples), np.float64)


def _variances(accuracies: Floats, judged_on: Floats) -> Floats:
    """Variance of each row's accuracies, for samples counted in `judged_on`, shape (N,).

    One right and one wrong answer are added, so that an accuracy of 1 on few samples does not look certain.
    """
    count = judged_on[:, None]
    with np.errstate(all="ignore"):
        share = (accuracies * count + 1) / (count + 2)
        return np.asarray(share * (1 - share) / count)
