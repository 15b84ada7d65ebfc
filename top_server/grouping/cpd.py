"""Class probability distance (FedGSP): squared MMD with a Gaussian kernel between two class distributions.

The paper leaves open what a sample of the MMD is. Reading A: a sample is a class, drawn from the distribution and
encoded one-hot. Then CPD = (1 - exp(-1/sigma^2)) * ||p - q||^2. Reading B: the distribution itself is the only sample.
Then CPD = 2 - 2 * exp(-||p - q||^2 / (2 sigma^2)). Both grow with ||p - q||, so both put pairs into the same order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

READINGS = ("A", "B")

Floats = NDArray[np.float64]


def cpd(p: NDArray[np.number], q: NDArray[np.number], reading: str = "A", sigma: float = 1.0) -> float:
    """The distance of two class histograms of shape (F,), counts or probabilities."""
    return float(cpd_pairs(np.stack([p, q]), reading, sigma)[0])


def cpd_pairs(histograms: NDArray[np.number], reading: str = "A", sigma: float = 1.0) -> Floats:
    """The distances of all pairs i < j of G histograms (G, F); shape (G * (G - 1) / 2,)."""
    if reading not in READINGS:
        raise ValueError(f"reading {reading!r} is not one of {READINGS}")
    totals = histograms.sum(axis=1, keepdims=True, dtype=np.float64)
    probabilities = histograms / np.where(totals > 0, totals, 1)
    # Row by row, to save memory. Equal histograms have exactly distance 0, which products of histograms would not
    # give.
    squares = np.concatenate(
        [((probabilities[i + 1 :] - p) ** 2).sum(axis=1) for i, p in enumerate(probabilities)], dtype=np.float64
    )
    if reading == "A":
        return -math.expm1(-1 / sigma**2) * squares
    return -2 * np.expm1(-squares / (2 * sigma**2))


def cpd_median(group_histograms: NDArray[np.number]) -> float:
    """The median of the distances (reading A, sigma 1) of all pairs of groups; 0.0 if there is only one group."""
    return float(np.median(cpd_pairs(group_histograms))) if len(group_histograms) > 1 else 0.0
