"""Which groups, or clients, take part in a round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from fedgsp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

T = TypeVar("T")

#: Lifts a product such as 0.29 * 50 that floating point left just below a half.
_EPSILON = 1e-9


def sample_size(total: int, rate: float) -> int:
    """The share `rate` of `total`, rounded half up, at least 1; ConfigError unless 0 < rate <= 1."""
    check_rate(rate)
    if total < 1:
        raise ValueError("nothing to sample from")
    return max(1, math.floor(rate * total + 0.5 + _EPSILON))


def sample(items: Sequence[T], rate: float, rng: np.random.Generator) -> tuple[T, ...]:
    """Items drawn uniformly without replacement, kept in their order."""
    chosen = rng.choice(len(items), size=sample_size(len(items), rate), replace=False)
    return tuple(items[i] for i in sorted(chosen.tolist()))


def check_rate(rate: float) -> None:
    """Refuse a rate outside (0, 1] with ConfigError."""
    if not 0 < rate <= 1:
        raise ConfigError(f"the sampling rate is {rate}", "choose a rate above 0 and at most 1")
