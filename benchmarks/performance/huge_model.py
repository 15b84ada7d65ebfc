"""Measures a round of FedAvg with a model of 1 GB: four clients, each on a node process of this machine, do not train.

Seconds and memory are as in `rounds`. Private memory is without pages that processes share, and without files that no
process has mapped.
"""

from __future__ import annotations

from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import FEDAVG, MIB, idle_task, play
from benchmarks.performance.sizes import HUGE

CLIENTS = 4
TIMEOUT_S = 900.0
MOST_BYTES = 6e9


def measure(repeats: int) -> list[Row]:
    flags = [*FEDAVG, *idle_task(CLIENTS, HUGE)]
    timed = play(flags, repeats + 2, TIMEOUT_S, nodes=CLIENTS)
    watched = play(flags, 3, TIMEOUT_S, nodes=CLIENTS, watch=True)
    return [
        Row(f"FedAvg round, {CLIENTS} clients, 1 GB", "s", timed.steady, 6),
        Row("private memory of the run, all processes", "MiB", (watched.peak_private / MIB,), MOST_BYTES / MIB),
        Row("peak memory of the run, all processes", "MiB", (watched.peak_pss / MIB,), MOST_BYTES / MIB),
    ]


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=3)
