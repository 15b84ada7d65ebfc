"""Measures time and result of FedCollab's solver: `python -m benchmarks.coalitions`.

The comparison is the plain algorithm. It moves one client at a time, never merges coalitions, and computes the two
coalitions of a move again. It stops after `--patience` seconds per case, perhaps with fewer restarts. The clients have
several kinds, which are random points of the unit square. Half of the clients are large.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from top_server.grouping.coalitions import objective, solve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SOLVES = 40
#: Distances between four types of five clients, samples of a large and of a small client, the option `c`.
SHIFTS = {
    "label": (((0, 0.157, 1, 1), (0.157, 0, 1, 1), (1, 1, 0.13, 0.286), (1, 1, 0.286, 0.157)), 2100, 14, 10.0),
    "feature": (
        (
            (0.018, 0.079, 0.218, 0.275),
            (0.079, 0.010, 0.249, 0.195),
            (0.218, 0.249, 0.026, 0.097),
            (0.275, 0.195, 0.097, 0.025),
        ),
        *(2500, 340, 10.0),
    ),
    "concept": (
        (
            (0.017, 0.088, 0.274, 0.292),
            (0.088, 0.014, 0.286, 0.248),
            (0.274, 0.286, 0.085, 0.139),
            (0.292, 0.248, 0.139, 0.027),
        ),
        *(2500, 120, 8.0),
    ),
}
PUBLISHED = [list(range(5)), list(range(5, 10)), list(range(10, 20))]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    distances: Floats
    sizes: NDArray[np.int64]
    weight: float
    restarts: int


def shift(name: str) -> Case:
    between, large, small, weight = SHIFTS[name]
    distances = np.array(between).repeat(5, axis=0).repeat(5, axis=1)
    return Case(f"{name} shift", distances, np.array([large] * 10 + [small] * 10), weight, 100)


def kinds(count: int, clients: int, weight: float) -> Case:
    rng = np.random.default_rng(count)
    points = rng.random((count, 2))[rng.integers(count, size=clients)]
    distances = np.linalg.norm(points[:, None] - points, axis=2) / np.sqrt(2)
    distances += 0.05 * np.abs(rng.normal(size=distances.shape))
    sizes = rng.integers(10, 300, clients)
    sizes[::2] *= 10
    return Case(f"{count} kinds", np.clip((distances + distances.T) / 2, 0, 1), sizes, weight, 10)


def plain(case: Case, until: float) -> tuple[list[list[int]], int]:
    """The best result of the restarts that end in time, and their number."""
    best: list[list[int]] = []
    for restart in range(case.restarts):
        groups = descent(case, np.random.default_rng(restart), until)
        if groups is None:
            return best, restart
        if not best or value(case, groups) < value(case, best):
            best = groups
    return best, case.restarts


def descent(case: Case, rng: np.random.Generator, until: float) -> list[list[int]] | None:
    count = len(case.sizes)
    groups: list[list[int]] = [[row] for row in range(count)]
    label = list(range(count))
    for _ in range(100):
        moved = False
        for client in rng.permutation(count).tolist():
            if time.perf_counter() > until:
                return None
            own = label[client]
            groups[own].remove(client)
            adds = [value(case, [[*group, client]]) - (value(case, [group]) if group else 0) for group in groups]
            best = int(np.argmin(adds))
            label[client] = best if adds[best] < adds[own] - 1e-12 else own
            groups[label[client]].append(client)
            moved |= label[client] != own
        if not moved:
            break
    return [group for group in groups if group]


def value(case: Case, groups: list[list[int]]) -> float:
    return objective(case.distances, case.sizes, case.weight, groups)


def row(case: Case, times: int, patience: float) -> str:
    seconds, busy, found = [], [], []
    for seed in range(times):
        start, start_busy = time.perf_counter(), time.process_time()
        found.append(solve(case.distances, case.sizes, case.weight, case.restarts, np.random.default_rng(seed)).groups)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - start_busy)
    values = [value(case, groups) for groups in found]
    own = f"{case.name:>14} {len(case.sizes):>5} {case.weight:>4g} {case.restarts:>8}"
    own += f" {statistics.median(seconds):>8.3f} {statistics.median(busy):>8.3f}"
    own += f" {statistics.median(values):>10.4f} {len(found[0]):>6}"
    if not patience:
        return own
    start = time.perf_counter()
    groups, restarts = plain(case, start + patience)
    took = f"{time.perf_counter() - start:.1f}"
    return f"{own} {restarts:>14} {took:>8} {value(case, groups) if groups else float('nan'):>10.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patience", type=float, default=60.0, help="most seconds of the plain algorithm per case")
    parser.add_argument("--times", type=int, default=3, help="runs of the solver per case; the table has the median")
    flags = parser.parse_args()
    head = f"{'clients':>14} {'N':>5} {'C':>4} {'restarts':>8} {'seconds':>8} {'CPU s':>8}"
    head += f" {'objective':>10} {'groups':>6}"
    print(head + (f" {'plain restarts':>14} {'seconds':>8} {'objective':>10}" if flags.patience else ""))
    for name in SHIFTS:
        print(row(shift(name), 5 * flags.times, flags.patience), flush=True)
    for of in [(20, 100, 10.0), (20, 1000, 1.0), (20, 1000, 10.0), (200, 1000, 1.0), (200, 1000, 10.0)]:
        print(row(kinds(*of), flags.times, flags.patience), flush=True)

    print(f"\nhow often the published coalitions are found in {SOLVES} solves: with 100 restarts, with 1 restart")
    missed = False
    for name in SHIFTS:
        case = shift(name)
        hits = [
            sum(
                solve(case.distances, case.sizes, case.weight, restarts, np.random.default_rng(seed)).groups
                == PUBLISHED
                for seed in range(SOLVES)
            )
            for restarts in (100, 1)
        ]
        print(f"{case.name:>14} {hits[0]:>3} {hits[1]:>3}")
        missed |= hits[0] < SOLVES
    sys.exit(missed)


if __name__ == "__main__":
    main()
