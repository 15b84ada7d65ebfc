"""Measures the cost of ICG for up to 36,400 clients, the quality of its clusters, and the effect of `refine`.

    python -m benchmarks.performance.icg [--data femnist.npz]

Clients have samples of 62 classes. The class counts are synthetic (Dirichlet 0.5), unless --data names an .npz file
with writer_train and y_train, from which 368 writers are drawn for the rows on `refine`. If the package
k-means-constrained is installed, it is measured for comparison.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.femnist_writers import CLASSES, WRITERS, class_counts
from benchmarks.performance.memory import peak, resident
from benchmarks.performance.rows import Row, main
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.balanced_clusters import balanced_clusters, nearest_balanced
from top_server.grouping.priced_clusters import nearest_priced
from top_server.grouping.refining import difference

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

ITERATIONS = 10
#: Numbers of clients and groups, and the limit in milliseconds.
SPEEDS = ((364, 52, 10.0), (3640, 52, 300.0), (36400, 52, 5000.0))
MOST_MEMORY = 1024.0
MOST_ABOVE_EXACT = 1.005
#: Number of groups of the 368 writers, and the share by which `refine` must lower z.
GAINS = ((50, 0.70), (10, 0.88))
#: Number of random groupings. Their mean z is compared with that of `refine`.
PICKS = 20


def synthetic(clients: int, seed: int = 0) -> Counts:
    """Class counts, shape (K, 62), of clients with about 226 samples each."""
    rng = np.random.default_rng([clients, seed])
    return rng.poisson(226 * rng.dirichlet(np.full(CLASSES, 0.5), clients))


def writers(data: Path, seed: int) -> Counts:
    counts, _ = class_counts(data)
    return counts[np.sort(np.random.default_rng(seed).permutation(len(counts))[:WRITERS])]


def request_for(counts: Counts, groups: int, turn: int, **options: str) -> GroupingRequest:
    options = {"iterations": str(ITERATIONS), **options}
    return GroupingRequest(turn, groups, 0, tuple(range(len(counts))), counts.sum(axis=1), counts, options=options)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def timed(request: GroupingRequest) -> float:
    return seconds(partial(GROUPINGS["icg"], request))


def speeds(repeats: int) -> list[Row]:
    rows = []
    for clients, groups, limit in SPEEDS:
        counts = synthetic(clients)
        request = partial(request_for, counts, groups)
        timed(request(0))
        ours = tuple(1000 * timed(request(turn)) for turn in range(1, repeats + 1))
        rows.append(Row(f"ICG, K = {clients:,}, M = {groups}", "ms", ours, limit))
        if clients < 10_000 and (theirs := _constrained(counts, clients // groups, groups, repeats)):
            rows.append(Row(f"ICG, K = {clients:,}, M = {groups}", "ms", ours, 1.0, "k-means-constrained", theirs))
    return rows


def _constrained(counts: Counts, clusters: int, size: int, repeats: int) -> tuple[float, ...]:
    try:
        from k_means_constrained import KMeansConstrained
    except ImportError:
        return ()

    def fit(turn: int) -> None:
        starts = counts[np.random.default_rng(turn).choice(len(counts), clusters, replace=False)]
        KMeansConstrained(
            clusters, size_min=size, size_max=size, init=starts.astype(float), n_init=1, max_iter=ITERATIONS, tol=0
        ).fit(counts)

    fit(0)
    return tuple(1000 * seconds(partial(fit, turn)) for turn in range(1, repeats + 1))


def peak_memory(clients: int, groups: int) -> float:
    """Peak memory of one grouping in MiB, above the memory of its process before, with the request and ICG loaded."""
    GROUPINGS["icg"](request_for(synthetic(20), 4, 0, refine="true"))
    request = request_for(synthetic(clients), groups, 1)
    before = resident(os.getpid())
    GROUPINGS["icg"](request)
    return (peak(os.getpid()) - before) / 2**20


def objectives(repeats: int) -> list[Row]:
    """Objectives of clusterings by prices and by the exact flow: for each step from the same sums, and at the end."""
    clients, groups, _ = SPEEDS[1]
    steps: list[tuple[float, float]] = []
    ends: list[tuple[float, float]] = []
    for seed in range(repeats):
        counts = synthetic(clients, seed)
        starts = np.random.default_rng(seed).choice(clients, clients // groups, replace=False)
        ours, exact = (balanced_clusters(counts, starts, ITERATIONS, kind) for kind in (False, True))
        ends.append((ours.objectives[-1], exact.objectives[-1]))
        labels = balanced_clusters(counts, starts, 3, exact=True).labels
        sums = np.stack([counts[labels == label].sum(axis=0) for label in range(len(starts))])
        priced = nearest_priced(counts, sums, groups, groups, np.zeros(len(sums))).labels
        flow = nearest_balanced(counts, sums, groups)
        steps.append((_objective(counts, sums / groups, priced), _objective(counts, sums / groups, flow)))
    return [
        Row(
            f"objective of {what}, K = {clients:,}",
            "half squared distances",
            tuple(ours for ours, _ in pairs),
            MOST_ABOVE_EXACT,
            "exact flow",
            tuple(theirs for _, theirs in pairs),
            note=f"worst {max(ours / theirs for ours, theirs in pairs):.5f}",
        )
        for what, pairs in (("one step", steps), (f"{ITERATIONS} iterations", ends))
    ]


def _objective(counts: Counts, centroids: NDArray[np.float64], labels: Counts) -> float:
    return 0.5 * float(((counts - centroids[labels]) ** 2).sum())


def gains(repeats: int, data: Path | None) -> list[Row]:
    rows = []
    kind = "writers" if data else "synthetic"
    for groups, least in GAINS:
        lowered, plain, extra = [], [], []
        for seed in range(repeats):
            counts = writers(data, seed) if data else synthetic(WRITERS, seed)
            refined = GROUPINGS["icg"](request_for(counts, groups, 0, refine="true"))
            picks = [GROUPINGS["icg"](request_for(counts, groups, turn)) for turn in range(PICKS)]
            of_picks = statistics.mean(_z(counts, plan.groups) for plan in picks)
            lowered.append(1 - _z(counts, refined.groups) / of_picks)
            for turn in range(1, 6):
                plain.append(1000 * timed(request_for(counts, groups, turn)))
                extra.append(1000 * timed(request_for(counts, groups, turn, refine="true")) - plain[-1])
        where = f"K = {WRITERS}, M = {groups}, {kind}"
        rows += [
            Row(f"z of eq. 4 lowered by refine, {where}", "share", tuple(lowered), least, at_least=True),
            Row(f"time of refine, {where}", "ms", tuple(extra), 1.0, "ICG without", tuple(plain)),
        ]
    return rows


def _z(counts: Counts, groups: tuple[tuple[int, ...], ...]) -> int:
    return difference(np.stack([counts[list(group)].sum(axis=0) for group in groups]))


def measure(repeats: int, data: Path | None = None) -> list[Row]:
    rows = speeds(repeats)
    clients, groups, _ = SPEEDS[-1]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        above = pool.apply(peak_memory, (clients, groups))
    rows.append(Row(f"peak memory above idle, K = {clients:,}, M = {groups}", "MiB", (above,), MOST_MEMORY))
    return [*rows, *objectives(repeats), *gains(repeats, data)]


if __name__ == "__main__":
    main(measure, __doc__ or "", data="FEMNIST as .npz: the rows on `refine` are of its writers")
