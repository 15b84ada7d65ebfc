"""Which groups, or which clients, train in a round: a random sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from fedgsp.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

#: Added to a product such as 0.29 * 50, which rounding may have left just below a half.
_EPSILON = 1e-9


def sample_size(total: int, rate: float) -> int:
    """The share `rate` of `total`, rounded half up, at least 1; ConfigError unless 0 < rate <= 1."""
    check_rate(rate)
    if total < 1:
        raise ValueError("nothing to sample from")
    return max(1, math.floor(rate * total + 0.5 + _EPSILON))


def sample(items: Sequence[T], rate: float, rng: np.random.Generator) -> tuple[T, ...]:
    """A uniform random sample without replacement. The drawn items keep their order."""
    chosen = rng.choice(len(items), size=sample_size(len(items), rate), replace=False)
    return tuple(items[i] for i in sorted(chosen.tolist()))


def check_rate(rate: float) -> None:
    """Raises ConfigError for a rate outside (0, 1]."""
    if not 0 < rate <= 1:
        raise ConfigError(f"the sampling rate is {rate}", "choose a rate above 0 and at most 1")
