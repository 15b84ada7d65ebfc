"""IFCA: several models; each client trains the one that fits it best, together with those who chose the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan

Ints = NDArray[np.int64]


def ifca(request: GroupingRequest) -> Plan:
    """Groups by chosen model, in the order of the models, from matrix `losses` (N, k): training loss under each model.

    A model that nobody chose has no group; a client whose losses are all unknown idles. No options. ConfigError
    without losses.
    """
    Options("ifca", request.options, ())
    losses = request.matrices.get("losses")
    if losses is None or not losses.shape[1]:
        raise ConfigError(
            "grouping ifca needs each client's loss under each model (matrix losses)",
            "let clients report them (scheme ifca), or use grouping random",
        )
    known = np.isfinite(losses).any(axis=1)
    if not known.any():
        raise ConfigError("grouping ifca: no client has a finite loss under any model", "train with a lower rate")
    chosen = np.where(known, choices(losses), losses.shape[1])
    return Plan.from_rows((np.flatnonzero(chosen == model).tolist() for model in np.unique(chosen[known])), request)


def choices(losses: NDArray[np.floating]) -> Ints:
    """The model of smallest loss per client, of equal ones the first; `losses` (N, k), NaN being worst. Shape (N,)."""
    return soft_choices(losses, 1)[:, 0]


def soft_choices(losses: NDArray[np.floating], count: int) -> Ints:
    """The `count` models of smallest loss per client (FLSC), ascending; of equal ones the first. Shape (N, count)."""
    if not 1 <= count <= losses.shape[1]:
        raise ValueError(f"{count} of {losses.shape[1]} models cannot be chosen")
    order = np.argsort(np.where(np.isnan(losses), np.inf, losses), axis=1, kind="stable")
    chosen: Ints = np.sort(order[:, :count], axis=1)
    return chosen
