"""MaxFL as HCCT's release implements it: those whom the global model still serves train it, the others train alone.

It compares a loss with a squared distance, which have different units; the weights of MaxFL proper are in `weighing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedgsp.errors import ConfigError
from top_server.grouping.hcct import FIRST_EPOCHS, ungrouped
from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVIDENCE = ("train_loss", "prior_distance")


def read_maxfl_hcct(given: Mapping[str, str]) -> str:
    """Its option; ConfigError for what cannot be."""
    return Options("maxfl-hcct", given, ("first_epoch",)).choice("first_epoch", FIRST_EPOCHS)


def maxfl_hcct(request: GroupingRequest) -> Plan:
    """One group of the clients with `train_loss` < `prior_distance`; everybody else alone.

    Both matrices are (N, 1): the loss of the global model on the client's training data, and ||w_prior - w_global||^2
    of the model that the client trained alone beforehand; where one is NaN the client is alone. Option
    `first_epoch` for the first round as in `hcct`. ConfigError without evidence after the first round.
    """
    first_epoch = read_maxfl_hcct(request.options)
    if request.round == 1:
        return ungrouped(request, first_epoch)
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
