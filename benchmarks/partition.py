"""Measures time and memory of HCCT's partition: `python -m benchmarks.partition`.

FedGSP's partition needs only the Gram matrix. The plain algorithm of the paper computes each benefit from the updates.
Each case runs in a new process. Its peak memory includes the interpreter and the matrix. The N clients have N/10
kinds, and an update has 64 numbers. The time of the plain algorithm grows in proportion to the length of an update.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from top_server.grouping.greedy_merging import partition

CLIENTS = (100, 300, 1000, 3000, 10_000)
WIDTH = 64
ALPHA = 100.0


def measure(clients: int, plain: bool) -> dict[str, float]:
    rng = np.random.default_rng(clients)
    kinds = rng.standard_normal((clients // 10, WIDTH), np.float32)
    updates = kinds[rng.integers(len(kinds), size=clients)]
    updates += 0.5 * rng.standard_normal(updates.shape, np.float32)
    sizes, alphas = rng.integers(50, 500, clients), np.full(clients, ALPHA)
    if plain:
        from tests.support import plain_hcct

        start = time.perf_counter()
        groups = plain_hcct.partition(updates.astype(np.float64), sizes.astype(np.float64), alphas)
    else:
        gram = updates @ updates.T
        start = time.perf_counter()
        groups = partition(gram, sizes, alphas)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"groups": len(groups), "seconds": seconds, "peak_mib": peak}


def in_a_process(clients: int, *flags: str, timeout_s: float | None = None) -> dict[str, float] | None:
    command = [sys.executable, "-m", "benchmarks.partition", "--measure", str(clients), *flags]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None
    measured: dict[str, float] = json.loads(ended.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patience", type=float, default=60.0, help="most seconds of the plain algorithm per case")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        print(json.dumps(measure(flags.measure, flags.plain)))
        return
    print(
        f"{'clients N':>10} {'groups':>8} {'seconds':>10} {'peak MiB':>10} {'plain groups':>14} {'plain seconds':>14}"
    )
    patience: float = flags.patience
    for clients in CLIENTS:
        ours = in_a_process(clients)
        assert ours is not None
        plain = in_a_process(clients, "--plain", timeout_s=patience) if patience else None
        if plain is None:
            patience = 0  # with more clients it would not end either
        beside = (plain["groups"], f"{plain['seconds']:.2f}") if plain else ("-", f"> {flags.patience:g}")
        own = f"{clients:>10} {ours['groups']:>8} {ours['seconds']:>10.2f} {ours['peak_mib']:>10.0f}"
        print(f"{own} {beside[0]:>14} {beside[1]:>14}", flush=True)


if __name__ == "__main__":
    main()
