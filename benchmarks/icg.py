"""How long ICG takes: `python benchmarks/icg.py`.

The paper reports 0.1 s for K = 364, M = 52, F = 62 and 10 iterations.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from top_server.grouping import GROUPINGS, GroupingRequest

CASES = ((364, 52), (368, 10), (3640, 52), (3640, 520))
CLASSES = 62


def request_for(clients: int, groups: int, round_number: int) -> GroupingRequest:
    rng = np.random.default_rng([clients, groups])
    histograms = rng.poisson(226 * rng.dirichlet(np.full(CLASSES, 0.5), clients))
    return GroupingRequest(
        round_number,
        groups,
        0,
        tuple(range(clients)),
        histograms.sum(axis=1),
        histograms,
        options={"iterations": "10"},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds timed per case")
    rounds = parser.parse_args().rounds
    icg = GROUPINGS["icg"]
    icg(request_for(20, 4, 0))  # loads the solver
    print(f"{'clients K':>10} {'groups M':>10} {'members L':>10} {'median ms':>10} {'worst ms':>10}")
    for clients, groups in CASES:
        seconds = []
        for round_number in range(1, rounds + 1):
            request = request_for(clients, groups, round_number)
            start = time.perf_counter()
            icg(request)
            seconds.append(time.perf_counter() - start)
        median, worst = 1000 * statistics.median(seconds), 1000 * max(seconds)
        print(f"{clients:>10} {groups:>10} {clients // groups:>10} {median:>10.1f} {worst:>10.1f}")


if __name__ == "__main__":
    main()
