"""MaxFL as HCCT's published code implements it: one group of the clients that gain by the global model.

All other clients train alone. The condition compares a loss with a squared distance, which have different units. The
weights of MaxFL as its own paper defines it are in `top_server/merging/weighing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from top_server.grouping.hcct import FIRST_EPOCHS, ungrouped
from top_server.grouping.request import GroupingRequest, Plan

_EVIDENCE = ("train_loss", "prior_distance")


@dataclass(frozen=True, slots=True)
class MaxflHcctOptions:
    """Options of grouping `maxfl-hcct`."""

    first_epoch: str = setting(
        "singletons", "groups of the first round: everyone alone, or all together", choices=FIRST_EPOCHS
    )


def maxfl_hcct(request: GroupingRequest, options: MaxflHcctOptions) -> Plan:
    """One group of the clients with `train_loss` < `prior_distance`; every other client is alone.

    Both matrices are (N, 1). `train_loss` is the loss of the global model on the client's training data.
    `prior_distance` is ||w_prior - w_global||^2, where w_prior is the model that the client trained alone before the
    first round. A client with NaN in one of them is alone. Raises ConfigError if they are missing after the first
    round.
    """
    if request.round == 1:
        return ungrouped(request, options.first_epoch)
    for name in _EVIDENCE:
        if name not in request.matrices or request.matrices[name].shape[1] != 1:
            raise ConfigError(
                f"grouping maxfl-hcct needs matrix {name} with one column",
                "let clients report it (scheme maxfl-hcct), or use grouping single",
            )
    loss, distance = (request.matrices[name][:, 0] for name in _EVIDENCE)
    taking_part = loss < distance
    groups = [[row] for row in np.flatnonzero(~taking_part).tolist()]
    if taking_part.any():
        groups.append(np.flatnonzero(taking_part).tolist())
    return Plan.from_rows(sorted(groups, key=min), request)
