"""Groupings: who trains with whom. Pure: evidence in, plan out; adding one is a file and a line here."""

from __future__ import annotations

from functools import partial

from top_server.grouping.base import Grouping
from top_server.grouping.cheapest_model import fesem, ifca
from top_server.grouping.fedcluster import FedClusterOptions, fedcluster
from top_server.grouping.fedcollab import FedCollabOptions, fedcollab
from top_server.grouping.fixed import fixed, fixed_clients, fixed_groups
from top_server.grouping.hcct import HcctOptions, hcct
from top_server.grouping.icg import IcgOptions, icg
from top_server.grouping.kmeans import KMeansOptions, kmeans
from top_server.grouping.maxfl_hcct import maxfl_hcct, read_maxfl_hcct
from top_server.grouping.options import no_options
from top_server.grouping.random_groups import random_groups, read_random
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.single import single_group
from top_server.grouping.singletons import singletons

__all__ = ["GROUPINGS", "Grouping", "GroupingRequest", "Plan"]

GROUPINGS: dict[str, Grouping] = {
    "fedcluster": Grouping(fedcluster, FedClusterOptions.read, {"profile": "updates"}, continues=True),
    "fedcollab": Grouping(fedcollab, FedCollabOptions.read, {"profile": "distances"}, continues=True),
    # Without these merges the models that clients choose among are never trained.
    "fesem": Grouping(fesem, partial(no_options, "fesem"), {"profile": "model-distances", "merge": "centres"}),
    "fixed": Grouping(fixed, fixed_groups, static=True, names=fixed_clients),
    "hcct": Grouping(hcct, HcctOptions.read, {"profile": "updates"}),
    "icg": Grouping(icg, IcgOptions.read, {"profile": "histograms"}, counted=True),
    "ifca": Grouping(ifca, partial(no_options, "ifca"), {"profile": "losses", "merge": "clusters"}),
    "kmeans": Grouping(kmeans, KMeansOptions.read, {"profile": "prior-models"}, continues=True),
    "maxfl-hcct": Grouping(maxfl_hcct, read_maxfl_hcct, {"profile": "prior-distances"}),
    "random": Grouping(random_groups, read_random, counted=True),
    "single": Grouping(single_group, partial(no_options, "single"), static=True),
    "singletons": Grouping(singletons, partial(no_options, "singletons"), static=True),
}
