"""Class probability distance (FedGSP): squared MMD with a Gaussian kernel between two class distributions.

The paper leaves open what a sample of the MMD is, and the width sigma of the kernel. Here a sample is a class, drawn
from the distribution and encoded one-hot, and sigma is 1. Then CPD = (1 - exp(-1 / sigma^2)) * ||p - q||^2.
"""

import math

import numpy as np
from numpy.typing import NDArray

from top_server.grouping.request import Floats


def cpd_pairs(histograms: NDArray[np.number]) -> Floats:
    """The distances of all pairs i < j of G histograms (G, F), counts or probabilities; shape (G * (G - 1) / 2,)."""
    totals = histograms.sum(axis=1, keepdims=True, dtype=np.float64)
    probabilities = histograms / np.where(totals > 0, totals, 1)
    # Row by row, to save memory. Equal histograms have exactly distance 0, which products of histograms would not
    # give.
    squares = [((probabilities[i + 1 :] - p) ** 2).sum(axis=1) for i, p in enumerate(probabilities)]
    return -math.expm1(-1) * np.concatenate(squares, dtype=np.float64)


def cpd_median(group_histograms: NDArray[np.number]) -> float:
    """The median of the distances of all pairs of groups; 0.0 if there is only one group."""
    return float(np.median(cpd_pairs(group_histograms))) if len(group_histograms) > 1 else 0.0
