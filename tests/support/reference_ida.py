"""Inverse distance aggregation as written down: whole models in float64, no blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tests.support.reference import State, weighted_mean


def ida(
    states: list[State],
    samples: Sequence[float],
    parameters: Collection[str],
    factors: Sequence[float] | None = None,
    distance: str = "l1",
) -> State:
    """`factors`: what inverse distances are multiplied by; all that is no parameter is averaged by samples."""
    if len(states) == 1:
        return states[0]
    distances = np.zeros(len(states))
    for name in [name for name in states[0] if name in parameters]:
        flat = [state[name].astype(np.float64).ravel() for state in states]
        total = np.zeros(flat[0].shape)
        for one in flat:
            total = total + one
        for k, one in enumerate(flat):
            off = total / len(flat) - one
            distances[k] += np.abs(off).sum() if distance == "l1" else (off * off).sum()
    if distance == "l2":
        distances = np.sqrt(distances)
    weights = np.array([1.0] * len(states) if factors is None else factors) / (distances + 1e-12)
    mean, averaged = weighted_mean(states, weights.tolist()), weighted_mean(states, samples)
    return {name: mean[name] if name in parameters else averaged[name] for name in mean}
