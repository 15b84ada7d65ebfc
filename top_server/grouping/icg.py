"""Inter-cluster grouping (FedGSP): forms clusters of similar clients, then deals one client of each into every group.

So the groups are similar to one another, and each group has clients of all kinds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedgsp import seeds
from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from top_server.grouping.request import GroupingRequest, Ints, Plan
from top_server.grouping.round_size import MODE_HELP, MODES, hand_out, shape_for

#: The sum of a normalised histogram. It is finer than any sampling noise, and products fit easily into 64 bits.
_NORMALISED_TOTAL = 2**16


@dataclass(frozen=True, slots=True)
class IcgOptions:
    """Options of grouping `icg`."""

    mode: str = setting("exact", MODE_HELP, choices=MODES)
    start: str = setting("uniform", "how the first centres are drawn", choices=("uniform", "k-means++"))
    iterations: int = setting(10, "most iterations of the clustering", least=1)
    normalise: bool = setting(False, "scale histograms to one total, so that only proportions count")
    refine: bool = setting(
        False, "put the members of a cluster where they make groups most alike, in place of at random"
    )


def icg(request: GroupingRequest, options: IcgOptions) -> Plan:
    """Groups with similar class histograms; raises ConfigError if there are no histograms."""
    if request.histograms is None:
        raise ConfigError("grouping icg needs class histograms", "let clients reveal them, or use grouping random")
    histograms = normalised(request.histograms) if options.normalise else request.histograms.astype(np.int64)

    rng = seeds.stream(request.seed, "icg", request.round)
    groups, members = shape_for(len(request.clients), request.groups, options.mode)
    taking_part, rest = np.split(rng.permutation(len(request.clients)), [groups * members])
    labels = _labels(histograms[taking_part], members, options, rng)
    clusters = taking_part[np.argsort(labels, kind="stable")].reshape(members, groups)
    clusters = rng.permuted(clusters, axis=1)
    extra: list[list[int]] = [[] for _ in range(groups)]
    if options.mode == "all":
        hand_out(extra, rest.tolist(), rng)
    if options.refine:
        # Imported here because the import takes long.
        from top_server.grouping.refining import dealt

        held = np.stack([histograms[clients].sum(axis=0) for clients in extra])
        clusters = dealt(clusters, histograms, held, rng)
    groups_of_rows = [*map(list.__add__, clusters.T.tolist(), extra)]
    if request.seconds is None:
        return Plan.from_rows(groups_of_rows, request)
    from top_server.grouping.balancing import balanced

    found = balanced(groups_of_rows, request.seconds, histograms, rng)
    return replace(Plan.from_rows(found.groups, request), note=str(found))


def normalised(histograms: Ints) -> Ints:
    """The histograms as integers with the same sum, nearly; a client without samples has only zeros."""
    totals = np.maximum(histograms.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.rint(histograms * (_NORMALISED_TOTAL / totals)), np.int64)


def _labels(rows: Ints, clusters: int, options: IcgOptions, rng: np.random.Generator) -> Ints:
    if len(rows) == clusters:
        return np.arange(len(rows))  # one member per cluster: any clustering gives the same group
    # Imported here because most processes that import the groupings never solve a flow.
    from top_server.grouping.balanced_clusters import balanced_clusters

    return balanced_clusters(rows, STARTS[options.start](rows, clusters, rng), options.iterations).labels


def _uniform(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Random row numbers, of different histograms as far as possible: equal centroids would stay equal."""
    order = rng.permutation(len(rows))
    firsts = np.sort(np.unique(rows[order], axis=0, return_index=True)[1])
    return np.take(order, np.concatenate([firsts, np.setdiff1d(np.arange(len(rows)), firsts)])[:count])


def _k_means_plus_plus(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Random row numbers: each chance is proportional to the squared distance from the nearest row drawn before."""
    points = rows.astype(np.float64)
    starts = [int(rng.integers(len(rows)))]
    nearest = ((points - points[starts[0]]) ** 2).sum(axis=1)
    while len(starts) < count and nearest.any():
        starts.append(int(rng.choice(len(rows), p=nearest / nearest.sum())))
        nearest = np.minimum(nearest, ((points - points[starts[-1]]) ** 2).sum(axis=1))
    return np.concatenate([np.array(starts), np.setdiff1d(np.arange(len(rows)), starts)])[:count]


#: Name -> start(rows, L, rng): row numbers of the first centroids.
STARTS: dict[str, Callable[[Ints, int, np.random.Generator], Ints]] = {
    "uniform": _uniform,
    "k-means++": _k_means_plus_plus,
}
