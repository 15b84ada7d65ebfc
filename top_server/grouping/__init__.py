"""Groupings: who trains with whom. Pure: evidence in, plan out; adding one is a file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from top_server.grouping.cheapest_model import fesem, ifca
from top_server.grouping.fedcluster import fedcluster
from top_server.grouping.fedcollab import fedcollab
from top_server.grouping.fixed import fixed
from top_server.grouping.hcct import hcct
from top_server.grouping.icg import icg
from top_server.grouping.kmeans import kmeans
from top_server.grouping.maxfl_hcct import maxfl_hcct
from top_server.grouping.random_groups import random_groups
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.single import single_group
from top_server.grouping.singletons import singletons

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COUNTED", "GROUPINGS", "GroupingRequest", "Plan"]

GROUPINGS: dict[str, Callable[[GroupingRequest], Plan]] = {
    "fedcluster": fedcluster,
    "fedcollab": fedcollab,
    "fesem": fesem,
    "fixed": fixed,
    "hcct": hcct,
    "icg": icg,
    "ifca": ifca,
    "kmeans": kmeans,
    "maxfl-hcct": maxfl_hcct,
    "random": random_groups,
    "single": single_group,
    "singletons": singletons,
}

#: Those that make as many groups as are wanted; a grouping service may.
COUNTED = ("icg", "random")
