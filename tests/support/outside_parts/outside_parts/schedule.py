"""A schedule that falls with a power of the position."""

from __future__ import annotations

from .declared import RootOptions


def root(options: RootOptions, position: int, _horizon: int) -> float:
    """(1 + position)^-power."""
    return float((1 + position) ** -options.power)
