"""Merges: which model a group starts from, and what becomes of the models that groups trained. One file each."""

from functools import partial

from fedgsp.means.averages import Mean
from fedgsp.means.ida import Ida
from fedgsp.means.robust import Median, TrimmedMean, TrimOptions
from fedgsp.parts import Part, Parts
from top_server.merging.base import MergeSettings, Merging
from top_server.merging.one_model import (
    IdaMergeOptions,
    OneModel,
    SmoothedModel,
    SmoothedOptions,
)
from top_server.merging.server_optimisers import AdagradOptions, AdamOptions, ServerOptimiser, adagrad, adam, yogi
from top_server.merging.several_models import Centres, Clusters, ModelPerGroup, SoftClusters, SoftOptions

__all__ = ["MERGES", "MergeSettings", "Merging"]

_BUILT_IN = {
    "mean": Part(
        help="one model: the mean of the groups' models",
        code=partial(OneModel, average=partial(Mean, weighted=False)),
    ),
    "weighted-mean": Part(
        help="one model: the mean of the groups' models, weighted by their training samples",
        code=partial(OneModel, average=partial(Mean, weighted=True)),
    ),
    "median": Part(
        help="one model: the median of the groups' models, coordinate by coordinate",
        code=partial(OneModel, average=Median),
    ),
    "trimmed-mean": Part(
        help="one model: the mean of the groups' models without the extreme values of each coordinate",
        code=lambda settings: OneModel(settings, partial(TrimmedMean, settings.options.trim)),
        options=TrimOptions,
    ),
    "ida": Part(
        help="one model: the mean of the groups' models, in which models far from the plain mean count less",
        code=lambda settings: OneModel(settings, partial(Ida, settings.options)),
        options=IdaMergeOptions,
    ),
    "fedadagrad": Part(
        help="one model, which moves towards the groups' mean by Adagrad",
        code=partial(ServerOptimiser, second=adagrad),
        options=AdagradOptions,
    ),
    "fedadam": Part(
        help="one model, which moves towards the groups' mean by Adam",
        code=partial(ServerOptimiser, second=adam),
        options=AdamOptions,
    ),
    "fedyogi": Part(
        help="one model, which moves towards the groups' mean by Yogi",
        code=partial(ServerOptimiser, second=yogi),
        options=AdamOptions,
    ),
    "smoothed-mean": Part(
        help="one model: the mean of the groups' models; the gamma of FedFusion is smoothed over the rounds",
        code=SmoothedModel,
        options=SmoothedOptions,
        needs={"training": ("fedfusion",)},
    ),
    "none": Part(help="a model for each group", code=ModelPerGroup),
    "clusters": Part(
        help="a model for each cluster, whether clients chose it or not", code=Clusters, needs={"grouping": ("ifca",)}
    ),
    "centres": Part(
        help="a model for each cluster: the mean of what its members trained last",
        code=Centres,
        # Centres are plain means of members' models: with other weights, a cluster's model would be none.
        needs={"grouping": ("fesem",), "aggregation": ("mean",), "weighing": ("uniform",)},
    ),
    # It takes means of members' models, and not of groups' models.
    "soft-clusters": Part(
        help="a model for each cluster; every client counts in several clusters",
        code=SoftClusters,
        options=SoftOptions,
        needs={"grouping": ("singletons",), "profile": ("losses",), "aggregation": ("mean",)},
    ),
}

MERGES: Parts[Part] = Parts("merge", _BUILT_IN, Part)
