"""IFCA and FeSEM: several models; each client trains the one that fits it best, with those who chose the same."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.parts import NoOptions
from top_server.grouping.request import GroupingRequest, Plan

Ints = NDArray[np.int64]


def cheapest_model(name: str, request: GroupingRequest, options: NoOptions) -> Plan:
    """Groups by chosen model, in the order of the models, from matrix `costs` (N, k): each client's with each model.

    Costs are training losses (IFCA) or squared distances to the client's own model (FeSEM). A model that nobody chose
    has no group; a client whose costs are all unknown idles. ConfigError without costs.
    """
    costs = request.matrices.get("costs")
    if costs is None or not costs.shape[1]:
        raise ConfigError(
            f"grouping {name} needs what each model costs each client (matrix costs)",
            f"let clients report it (scheme {name}), or use grouping random",
        )
    known = np.isfinite(costs).any(axis=1)
    if not known.any():
        raise ConfigError(f"grouping {name}: no client has a finite cost with any model", "train with a lower rate")
    chosen = np.where(known, choices(costs), costs.shape[1])
    return Plan.from_rows((np.flatnonzero(chosen == model).tolist() for model in np.unique(chosen[known])), request)


ifca = partial(cheapest_model, "ifca")
fesem = partial(cheapest_model, "fesem")


def choices(costs: NDArray[np.floating]) -> Ints:
    """The model of smallest cost per client, of equal ones the first; `costs` (N, k), NaN being worst. Shape (N,)."""
    return soft_choices(costs, 1)[:, 0]


def soft_choices(losses: NDArray[np.floating], count: int) -> Ints:
    """The `count` models of smallest loss per client (FLSC), ascending; of equal ones the first. Shape (N, count)."""
    if not 1 <= count <= losses.shape[1]:
        raise ValueError(f"{count} of {losses.shape[1]} models cannot be chosen")
    order = np.argsort(np.where(np.isnan(losses), np.inf, losses), axis=1, kind="stable")
    chosen: Ints = np.sort(order[:, :count], axis=1)
    return chosen
