"""When a claim holds: decided by values of the same seeds, before the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy import stats

HOLDS, FAILS, OPEN = "holds", "fails", "open"
CONFIDENCE = 0.95


def verdict(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Whether "ours is above theirs" holds, by values of each seed; only seeds that both have count.

    "holds" if the difference is above 0 in every seed, or if its paired 95 % t interval is above 0. "fails" is the
    opposite: the same with below. "open" is all else, and always the answer with fewer than two seeds. Raises
    ValueError for a value that is not finite.
    """
    differences = np.array([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())], np.float64)
    if not np.isfinite(differences).all():
        raise ValueError("a value is not finite")
    if len(differences) < 2:
        return OPEN
    low, high = interval(differences)
    if (differences > 0).all() or low > 0:
        return HOLDS
    if (differences < 0).all() or high < 0:
        return FAILS
    return OPEN


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % t interval of the mean of at least two values."""
    mean, half = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    half *= float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return mean - half, mean + half
