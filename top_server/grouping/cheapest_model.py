"""IFCA and FeSEM: there are several models. Each client chooses the one with the smallest cost and trains it.

The clients that choose the same model are a group.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.parts import NoOptions
from top_server.grouping.request import Flags, GroupingRequest, Ints, Plan


def cheapest_model(name: str, request: GroupingRequest, options: NoOptions) -> Plan:
    """A group for each chosen model, in the order of the models.

    Matrix `costs` (N, models) has the cost of each model for each client: its training loss (IFCA), or its squared
    distance from the client's own model (FeSEM). A model that no client chose has no group. A client whose costs are
    all unknown (NaN) is idle. Raises ConfigError if the matrix is missing.
    """
    costs = request.matrices.get("costs")
    if costs is None or not costs.shape[1]:
        raise ConfigError(
            f"grouping {name} needs what each model costs each client (matrix costs)",
            f"let clients report it (scheme {name}), or use grouping random",
        )
    known = can_choose(costs)
    if not known.any():
        raise ConfigError(f"grouping {name}: no client has a finite cost with any model", "train with a lower rate")
    chosen = np.where(known, choices(costs), costs.shape[1])
    return Plan.from_rows((np.flatnonzero(chosen == model).tolist() for model in np.unique(chosen[known])), request)


ifca = partial(cheapest_model, "ifca")
fesem = partial(cheapest_model, "fesem")


def can_choose(costs: NDArray[np.floating]) -> Flags:
    """Whether each client has a finite cost with any model, shape (N,), from `costs` (N, models)."""
    known: Flags = np.isfinite(costs).any(axis=1)
    return known


def choices(costs: NDArray[np.floating]) -> Ints:
    """Index of the cheapest model of each client, shape (N,), from `costs` (N, models); the first one in a tie.

    An unknown cost (NaN) counts as larger than every other cost.
    """
    return soft_choices(costs, 1)[:, 0]


def soft_choices(losses: NDArray[np.floating], count: int) -> Ints:
    """The `count` cheapest models of each client (FLSC), ascending, shape (N, count); the first ones in a tie."""
    order = np.argsort(np.where(np.isnan(losses), np.inf, losses), axis=1, kind="stable")
    return np.sort(order[:, :count], axis=1)
