"""Measures processes before any work: a group manager's start and memory, and the memory of nodes with 100 clients.

    python -m benchmarks.performance.processes [--data femnist.npz]

A manager's start takes from its launch to its ready line; the first one waits for the imports of its template.
Nodes are measured after they have joined, while they wait.
--data adds 4 nodes with 100 writers each, with the built-in task femnist. PSS counts a page that n processes share as
1/n, so it depends on other processes of the machine. USS counts only pages that are not shared.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

from benchmarks.performance.memory import pss, uss
from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import MIB, joined
from fedgsp.processes.children import Template, ready_line, stop
from fedgsp.security.tickets import KEY_BYTES
from fedgsp.settings.managers import COMMAND, IMPORTS

CLIENTS = 100
WRITERS_NODES = 4
MANAGER_S, FURTHER_S, MANAGER_MIB, NODE_MIB = 0.5, 0.1, 45.0, 300.0


async def managers() -> tuple[float, float, float, float]:
    """Seconds until the first manager of a template and the next one are ready; PSS and USS of the latter in MiB."""
    seconds = []
    async with aclosing(Template(IMPORTS)) as made:
        for name in ("m0", "m1"):
            begin = time.perf_counter()
            child = await made.spawn([*COMMAND, "--name", name, "--listen", "127.0.0.1:0"], None)
            child.tell(bytes(KEY_BYTES).hex())
            await ready_line(child, name, None)
            seconds.append(time.perf_counter() - begin)
            found = pss(child.pid) / MIB, uss(child.pid) / MIB
            await stop(child)
    return seconds[0], seconds[1], *found


def nodes(number: int, flags: list[str]) -> list[float]:
    """PSS in MiB of each node that has joined."""
    with joined([*flags, "--clients", str(CLIENTS * number)], number) as pids:
        return [pss(pid) / MIB for pid in pids]


def measure(repeats: int, data: Path | None = None) -> list[Row]:
    asyncio.run(managers())  # loads the modules from the disk into the cache
    first, further, proportional, unique = zip(*(asyncio.run(managers()) for _ in range(repeats)), strict=True)
    rows = [
        Row("first group manager, from spawn to ready", "s", first, MANAGER_S),
        Row("further group manager, from spawn to ready", "s", further, FURTHER_S),
        Row("group manager when ready, PSS", "MiB", proportional, MANAGER_MIB),
        Row("group manager when ready, USS", "MiB", unique, MANAGER_MIB),
    ]
    turns = range(min(repeats, 3))
    # By default a run has nodes with the task digits. A single node shares the fewest pages.
    digits = [mib for _ in turns for mib in nodes(1, ["--task-option", f"clients={CLIENTS}"])]
    rows.append(Row(f"a node with {CLIENTS} clients of digits, idle, PSS", "MiB", tuple(digits), NODE_MIB))
    if data is not None:
        flags = ["--task", "femnist", "--task-option", f"data={data.resolve()}"]
        flags += ["--task-option", f"writers={CLIENTS * WRITERS_NODES}"]
        writers = [mib for _ in turns for mib in nodes(WRITERS_NODES, flags)]
        what = f"each of {WRITERS_NODES} nodes with {CLIENTS} writers of FEMNIST, idle, PSS"
        rows.append(Row(what, "MiB", tuple(writers), NODE_MIB))
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", data="FEMNIST as .npz: adds rows on its writers")
