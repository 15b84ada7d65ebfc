"""Class histograms for targets that are no classes, such as measurements: the number of values in each bin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def histogram(values: Any, edges: Sequence[float]) -> NDArray[np.int64]:
    """Number of values in each bin, shape (len(edges) + 1,): below the first edge, between two, from the last on.

    A value on an edge is in the bin above it. Histograms can only be compared if all nodes have the same edges: write
    the numbers into the task, or make them an option. `quantile_edges` finds useful ones. Raises ValueError for edges
    that do not ascend, or values that are not finite.
    """
    found = np.asarray(edges, np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all() or (np.diff(found) <= 0).any():
        raise ValueError(f"edges have to be finite and to ascend, without equal ones: {list(edges)}")
    flat = np.asarray(values, np.float64).ravel()
    if not np.isfinite(flat).all():
        raise ValueError("a value is NaN or infinite, and is in no bin")
    return np.bincount(np.searchsorted(found, flat, side="right"), minlength=len(found) + 1).astype(np.int64)


def quantile_edges(values: Any, bins: int) -> list[float]:
    """Edges that divide these values into at most so many bins of about equal size; fewer if values repeat.

    Call it once, on values that may be known, such as a public data set, and give all nodes its result: edges found by
    each node on its own data differ, and reveal quantiles of these data. Raises ValueError for less than two bins, or
    if the values do not make two bins.
    """
    flat = np.asarray(values, np.float64).ravel()
    if bins < 2 or not len(flat) or not np.isfinite(flat).all():
        raise ValueError(f"{bins} bins of {len(flat)} values: give at least 2 bins, and finite values")
    edges = np.unique(np.quantile(flat, np.arange(1, bins) / bins))
    found = [float(edge) for edge in edges if (flat < edge).any()]  # else the lowest bin would be empty
    if found:
        return found
    above = flat[flat > flat.min()]  # the least value is so frequent that all quantiles are equal to it
    if not len(above):
        raise ValueError("all values are equal, so that they make no two bins")
    return [float(above.min())]
