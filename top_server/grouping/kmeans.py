"""One-shot clustering: k-means of the models that the clients have trained alone."""

import warnings
from dataclasses import dataclass

import numpy as np

from fedgsp import seeds
from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from top_server.grouping.pairwise import Matrix, products
from top_server.grouping.request import Flags, Floats, GroupingRequest, Ints, Plan


@dataclass(frozen=True, slots=True)
class KMeansOptions:
    """Options of grouping `kmeans`."""

    clusters: int = setting(4, "number of clusters", least=1)
    restarts: int = setting(10, "starts of the k-means", least=1)


def kmeans(request: GroupingRequest, options: KMeansOptions) -> Plan:
    """Clusters of similar models, from matrix `gram`: the inner products of the weights after training alone.

    The groups of the round before stay. A client without a group joins the group with the nearest centre, or the
    smallest group if its weights are unknown (a row of NaN). Raises ConfigError if there are no groups yet and the
    matrix cannot be used.
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
    """The cluster of each client by k-means, shape (n,), from the inner products `gram` (n, n) of their vectors."""
    # Imported here because the import takes more than a second, which only this grouping needs.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    state = int(seeds.stream(seed, "kmeans").integers(2**31))
    means = KMeans(n_clusters=min(clusters, len(gram)), n_init=restarts, random_state=state)
    # One thread: for data of this size, threads spend more time waiting for one another than computing.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different models than clusters are no mistake
        return np.asarray(means.fit_predict(embedded(gram)), np.int64)


def embedded(gram: Floats) -> Floats:
    """Points (n, n) with the distances of the vectors whose inner products are `gram`: k-means needs no more."""
    # The mean is subtracted, because the common part (the initial weights) would hide the differences by rounding.
    centred = gram - gram.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)), np.float64)


def _join(groups: list[list[int]], gram: Matrix, known: Flags, order: list[int]) -> None:
    """Puts each row of `order` that has no group into one; centres of groups do not change while rows join."""
    grouped = {row for group in groups for row in group}
    centres = [[row for row in group if known[row]] for group in groups]
    for row in (row for row in order if row not in grouped):
        # The squared distance without the newcomer's own square, which is the same for all groups.
        distances = [
            gram[np.ix_(centre, centre)].mean() - 2 * gram[row, centre].mean() if known[row] and centre else np.inf
            for centre in centres
        ]
        chosen = groups[int(np.argmin(distances))] if min(distances) < np.inf else min(groups, key=len)
        chosen.append(row)
