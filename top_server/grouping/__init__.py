"""Groupings: rules that decide which clients train together. Each is a pure function from evidence to a plan.

A new grouping is a file with its function, and a row in the table below.
"""

from fedgsp.parts import Parts
from top_server.grouping.base import Grouping
from top_server.grouping.cheapest_model import fesem, ifca
from top_server.grouping.fedcluster import FedClusterOptions, fedcluster
from top_server.grouping.fedcollab import FedCollabOptions, fedcollab
from top_server.grouping.hcct import HcctOptions, MaxflHcctOptions, hcct, maxfl_hcct
from top_server.grouping.icg import IcgOptions, icg
from top_server.grouping.kmeans import KMeansOptions, kmeans
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.without_evidence import (
    FixedOptions,
    RandomOptions,
    fixed,
    random_groups,
    single_group,
    singletons,
)

__all__ = ["GROUPINGS", "Grouping", "GroupingRequest", "Plan"]

_BUILT_IN = {
    "fedcluster": Grouping(
        help="groups that split in two while the updates of their members disagree",
        code=fedcluster,
        options=FedClusterOptions,
        needs={"profile": ("updates",)},
        continues=True,
    ),
    "fedcollab": Grouping(
        help="coalitions with the smallest bound on their members' errors, found once",
        code=fedcollab,
        options=FedCollabOptions,
        needs={"profile": ("distances",)},
        continues=True,
    ),
    # `needs`: with another merge, the models among which clients choose would never be trained.
    "fesem": Grouping(
        help="clients whose own models are nearest to the same cluster's model",
        code=fesem,
        needs={"profile": ("model-distances",), "merge": ("centres",)},
    ),
    "fixed": Grouping(
        help="groups that are known beforehand",
        code=fixed,
        options=FixedOptions,
        static=True,
        names=lambda options: options.groups.clients,
    ),
    "hcct": Grouping(
        help="clients that gain more by each other's samples than they lose by their difference",
        code=hcct,
        options=HcctOptions,
        needs={"profile": ("updates",)},
    ),
    "icg": Grouping(
        help="groups with alike class histograms, each of unlike clients",
        code=icg,
        options=IcgOptions,
        needs={"profile": ("histograms",)},
        counted=True,
        balances=True,
    ),
    "ifca": Grouping(
        help="clients for which the same cluster's model has the smallest loss",
        code=ifca,
        needs={"profile": ("losses",), "merge": ("clusters",)},
    ),
    "kmeans": Grouping(
        help="k-means of the models that clients train alone before the first round",
        code=kmeans,
        options=KMeansOptions,
        needs={"profile": ("prior-models",)},
        continues=True,
    ),
    "maxfl-hcct": Grouping(
        help="one group of the clients that the global model still serves; the others are alone",
        code=maxfl_hcct,
        options=MaxflHcctOptions,
        needs={"profile": ("prior-distances",)},
    ),
    "random": Grouping(help="groups at random", code=random_groups, options=RandomOptions, counted=True),
    "single": Grouping(help="one group of all clients", code=single_group, static=True),
    "singletons": Grouping(help="every client alone", code=singletons, static=True),
}

GROUPINGS: Parts[Grouping] = Parts("grouping", _BUILT_IN, Grouping)
