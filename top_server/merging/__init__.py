"""Merges: which model a group starts from, and what the results of a round become. One file each, one line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from top_server.merging.base import Merging
from top_server.merging.clusters import Clusters
from top_server.merging.model_per_group import ModelPerGroup
from top_server.merging.one_model import OneModel
from top_server.merging.soft_clusters import SoftClusters

if TYPE_CHECKING:
    from top_server.run import Run

__all__ = ["MERGES", "MERGE_OPTIONS", "Merging"]

MERGES: dict[str, Callable[[Run], Merging]] = {
    "mean": partial(OneModel, weighted=False),
    "weighted-mean": partial(OneModel, weighted=True),
    "none": ModelPerGroup,
    "clusters": Clusters,
    "soft-clusters": SoftClusters,
}

#: Name -> options of --grouping-option that the merge reads.
MERGE_OPTIONS: dict[str, tuple[str, ...]] = {"soft-clusters": SoftClusters.options}
