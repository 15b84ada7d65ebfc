"""Merges: which model a group starts from, and what becomes of the models that groups trained. One file each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedgsp.aggregation import Mean
from fedgsp.robust import Median
from top_server.merging.base import MergeSettings, Merging
from top_server.merging.clusters import Centres, Clusters
from top_server.merging.model_per_group import ModelPerGroup
from top_server.merging.one_model import OneModel, TrimmedModel
from top_server.merging.soft_clusters import SoftClusters
from top_server.merging.trimming import TRIMMED

__all__ = ["MERGES", "MERGE_OPTIONS", "MergeSettings", "Merging", "share_a_manager"]

MERGES: dict[str, Callable[[MergeSettings], Merging]] = {
    "mean": partial(OneModel, average=partial(Mean, weighted=False)),
    "weighted-mean": partial(OneModel, average=partial(Mean, weighted=True)),
    "median": partial(OneModel, average=Median),
    TRIMMED: TrimmedModel,
    "none": ModelPerGroup,
    "clusters": Clusters,
    "centres": Centres,
    "soft-clusters": SoftClusters,
}

#: Name -> options of --grouping-option that the merge reads.
MERGE_OPTIONS: dict[str, tuple[str, ...]] = {
    "soft-clusters": SoftClusters.options,
    TRIMMED: TrimmedModel.options,
}


def share_a_manager(name: str) -> bool:
    """Whether clients that train alone need one manager together, and not one each."""
    return getattr(MERGES[name], "alone", None) is not None
