"""One-shot clustering: k-means of what the clients' models have become by training alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgsp import seeds
from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from top_server.grouping.pairwise import Flags, Matrix, products
from top_server.grouping.request import GroupingRequest, Plan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KMeansOptions:
    """Options of grouping `kmeans`."""

    clusters: int = setting(4, "number of clusters", least=1)
    restarts: int = setting(10, "starts of the k-means", least=1)


def kmeans(request: GroupingRequest, options: KMeansOptions) -> Plan:
    """Clusters of alike models, from matrix `gram`: the inner products of the weights after training alone.

    Groups of the round before stay. A client without a group joins the group with the nearest centre, or, without
    weights (a row of NaN), the smallest group. ConfigError without a usable matrix where there are no groups yet.
    """
    count = len(request.clients)
    groups = request.settled_rows
    gram: Matrix = np.zeros((count, count))
    known: Flags = np.zeros(count, np.bool_)
    if not groups or "gram" in request.matrices:
        gram, known = products(request, "kmeans", "weights")
    if not groups:
        rows = np.flatnonzero(known)
        if not len(rows):
            raise ConfigError("grouping kmeans: no client has reported its weights", "use grouping random")
        labels = clustered(
            gram[np.ix_(rows, rows)].astype(np.float64), options.clusters, options.restarts, request.seed
        )
        groups = [rows[labels == label].tolist() for label in np.unique(labels)]
    _join(groups, gram, known, sorted(range(count), key=lambda row: request.clients[row]))
    return Plan.from_rows(sorted(groups, key=min), request)


def clustered(gram: Floats, clusters: int, restarts: int, seed: int) -> Ints:
    """The cluster of each client by k-means, shape (n,); `gram` (n, n) holds the inner products of what to cluster."""
    # Loading it takes more than a second, which other groupings need not wait for.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    state = int(seeds.stream(seed, "kmeans").integers(2**31))
    means = KMeans(n_clusters=min(clusters, len(gram)), n_init=restarts, random_state=state)
    # At these sizes waiting for one another takes threads longer than the work.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different models than clusters are no mistake
        labels: Ints = means.fit_predict(embedded(gram)).astype(np.int64)
    return labels


def embedded(gram: Floats) -> Floats:
    """Points (n, n) as far apart as the vectors whose inner products are `gram`, which is all that k-means sees."""
    # Around their mean, lest what all have in common (the initial weights) drown the differences.
    centred = gram - gram.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    points: Floats = vectors * np.sqrt(np.maximum(values, 0))
    return points


def _join(groups: list[list[int]], gram: Matrix, known: Flags, order: list[int]) -> None:
    """Puts those without a group into one, in this order; centres are those of the groups as given."""
    grouped = {row for group in groups for row in group}
    centres = [[row for row in group if known[row]] for group in groups]
    for row in order:
        if row in grouped:
            continue
        nearest = np.inf
        chosen = min(groups, key=len)
        for group, centre in zip(groups, centres, strict=True):
            if known[row] and centre:
                # Less the newcomer's own square, which all distances have in common.
                distance = gram[np.ix_(centre, centre)].mean() - 2 * gram[row, centre].mean()
                if distance < nearest:
                    nearest, chosen = distance, group
        chosen.append(row)
