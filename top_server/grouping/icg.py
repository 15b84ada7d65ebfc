"""Inter-cluster grouping (FedGSP): cluster clients that look alike, then take one of each cluster into every group.

Groups so differ little from one another, while each holds clients of all kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgsp import seeds
from fedgsp.errors import ConfigError
from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.sizes import MODES, Shape, hand_out, shape_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Ints = NDArray[np.int64]

#: Total of a normalised histogram: finer than any sampling noise, and products stay far below 64 bits.
_NORMALISED_TOTAL = 2**16


class IcgOptions(NamedTuple):
    """What `icg` may be told."""

    mode: str
    start: str
    iterations: int
    normalise: bool
    refine: bool

    @classmethod
    def read(cls, given: Mapping[str, str]) -> IcgOptions:
        """What was; ConfigError for what cannot be."""
        options = Options("icg", given, cls._fields)
        return cls(
            options.choice("mode", MODES),
            options.choice("start", tuple(STARTS)),
            options.integer("iterations", 10),
            options.flag("normalise", False),
            options.flag("refine", False),
        )


def icg(request: GroupingRequest) -> Plan:
    """Groups whose class histograms look alike.

    Options: `mode` as in `sizes`, `start` (uniform, k-means++), `iterations` of the clustering (10), `normalise`
    (false: raw counts, so that quantity counts too), `refine` (false: members of a cluster go to groups at random;
    true: where they make the groups most alike). ConfigError without histograms.
    """
    mode, start, iterations, normalise, refine = IcgOptions.read(request.options)
    if request.histograms is None:
        raise ConfigError("grouping icg needs class histograms", "let clients reveal them, or use grouping random")
    histograms = normalised(request.histograms) if normalise else request.histograms.astype(np.int64)

    rng = seeds.stream(request.seed, "icg", request.round)
    shape = shape_for(len(request.clients), request.groups, mode)
    order = rng.permutation(len(request.clients))
    taking_part, rest = order[: shape.clients], order[shape.clients :]
    labels = _labels(histograms[taking_part], shape, start, iterations, rng)
    clusters = taking_part[np.argsort(labels, kind="stable")].reshape(shape.members, shape.groups)
    clusters = rng.permuted(clusters, axis=1)
    extra: list[list[int]] = [[] for _ in range(shape.groups)]
    if mode == "all":
        hand_out(extra, rest.tolist(), rng)
    if refine:
        clusters = _refined(clusters, histograms, extra, rng)
    return Plan.from_rows([*map(list.__add__, clusters.T.tolist(), extra)], request)


def normalised(histograms: Ints) -> Ints:
    """Histograms scaled to one common total, in integers; a client without samples keeps zeros."""
    totals = np.maximum(histograms.sum(axis=1, keepdims=True), 1)
    scaled: Ints = np.rint(histograms * (_NORMALISED_TOTAL / totals)).astype(np.int64)
    return scaled


def _refined(clusters: Ints, histograms: Ints, extra: list[list[int]], rng: np.random.Generator) -> Ints:
    # Loaded only here, for it takes a while.
    from top_server.grouping.refining import dealt

    held = np.stack([histograms[clients].sum(axis=0) for clients in extra])
    return dealt(clusters, histograms, held, rng)


def _labels(rows: Ints, shape: Shape, start: str, iterations: int, rng: np.random.Generator) -> Ints:
    if shape.groups == 1:
        return np.arange(len(rows))  # one member per cluster: any clustering gives the same group
    # Loaded only here: most processes that know the groupings never solve a flow.
    from top_server.grouping.balanced_clusters import balanced_clusters

    starts = STARTS[start](rows, shape.members, rng)
    return balanced_clusters(rows, starts, iterations).labels


def _uniform(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Row numbers drawn uniformly, of different histograms as far as there are any: equal centroids never part."""
    order = rng.permutation(len(rows))
    firsts = np.sort(np.unique(rows[order], axis=0, return_index=True)[1])
    repeats = np.setdiff1d(np.arange(len(rows)), firsts)
    starts: Ints = order[np.concatenate([firsts, repeats])[:count]]
    return starts


def _k_means_plus_plus(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Row numbers each drawn with a chance proportional to the squared distance to the nearest one before it."""
    points = rows.astype(np.float64)
    starts = [int(rng.integers(len(rows)))]
    nearest = ((points - points[starts[0]]) ** 2).sum(axis=1)
    while len(starts) < count and nearest.any():
        starts.append(int(rng.choice(len(rows), p=nearest / nearest.sum())))
        nearest = np.minimum(nearest, ((points - points[starts[-1]]) ** 2).sum(axis=1))
    repeats = np.setdiff1d(np.arange(len(rows)), starts)
    return np.concatenate([np.array(starts), repeats])[:count]


#: Name -> start(rows, L, rng): row numbers of the first centroids.
STARTS: dict[str, Callable[[Ints, int, np.random.Generator], Ints]] = {
    "uniform": _uniform,
    "k-means++": _k_means_plus_plus,
}
