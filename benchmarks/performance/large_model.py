"""Measures the peak memory of processes above idle while a 250 MB model is trained, relative to that model's size.

The figure is the kernel's peak of resident memory since the process was ready to work, with the evaluation. There is
one value per process, and each node hosts one client. The model that a node creates at its start, to learn names and
shapes of tensors, is created before and not included.
"""

from __future__ import annotations

from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import FEDAVG, MIB, ONE_GROUP, Played, idle_task, play
from benchmarks.performance.sizes import LARGE

ROUNDS = 2
TIMEOUT_S = 300.0
LIMIT = 2.2
TWO_GROUPS = ("--scheme", "fedgsp", "--beta", "2", "--growth", "linear", "--alpha", "0.0001")
#: Name, scheme, and number of clients, each on a separate node.
CASES = (
    ("FedAvg of 2 clients", FEDAVG, 2),
    ("relay in one group of 2", ONE_GROUP, 2),
    ("relay in 2 groups of 2", TWO_GROUPS, 4),
)


def above_idle(played: Played, kind: str) -> tuple[float, ...]:
    """MiB above idle of each process of a kind. Idle is their minimum, because some may already have had work."""
    processes = [process for process in played.processes if process.kind == kind]
    idle = min(process.idle for process in processes)
    return tuple((process.peak - idle) / MIB for process in processes)


def measure(repeats: int) -> list[Row]:
    model = 4 * LARGE / MIB
    rows = []
    for name, scheme, clients in CASES:
        flags = [*scheme, *idle_task(clients, LARGE)]
        runs = [play(flags, ROUNDS, TIMEOUT_S, nodes=clients, watch=True) for _ in range(repeats)]
        for kind in ("top server", "manager", "node"):
            ours = tuple(mib for played in runs for mib in above_idle(played, kind))
            case = "large-model-memory" if scheme is FEDAVG and kind != "node" else ""
            rows.append(Row(f"{kind} above idle, {name}", "MiB", ours, LIMIT, "the model", (model,), case=case))
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=1)
