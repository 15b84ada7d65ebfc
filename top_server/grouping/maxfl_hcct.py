"""MaxFL as HCCT's release implements it: those whom the global model still serves train it, the others train alone.

It compares a loss with a squared distance, which have different units; the weights of MaxFL proper are in `weighing`.
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
    """One group of the clients with `train_loss` < `prior_distance`; everybody else alone.

    Both matrices are (N, 1): the loss of the global model on the client's training data, and ||w_prior - w_global||^2
    of the model that the client trained alone beforehand; where one is NaN the client is alone.
    ConfigError without evidence after the first round.
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
