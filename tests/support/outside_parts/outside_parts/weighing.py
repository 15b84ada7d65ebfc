"""A weighing by a power of the samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .declared import PowerOptions


def power(
    sizes: NDArray[np.integer], evidence: Mapping[str, NDArray[np.floating]], options: PowerOptions
) -> NDArray[np.float64]:
    """The samples to a power; 1 for all where nobody has any."""
    weights: NDArray[np.float64] = sizes.astype(np.float64) ** options.power
    return weights if weights.any() else np.ones(len(sizes))
