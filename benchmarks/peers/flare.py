"""Plays NVFlare's cases: `python -m benchmarks.peers.flare CASE`, in the environment of the requirements.

NVFlare's proof-of-concept deployment is a real deployment on one machine: a server, a process for each client, and
child processes of each for the job, with mutual TLS. Both sides poll, here every 0.05 s (defaults: 2 s and 0.5 s).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.model import CNN_PARAMETERS, SMALL_PARAMETERS, STAMPS
from benchmarks.peers.processes import LimitError, Processes
from benchmarks.peers.results import SECONDS, Case, main, rounds_of, stamps_of

BIN = Path(sys.executable).parent
#: Seconds after which a simulation's pace shows whether it can end in time.
WARM_UP = 60.0


def environment(home: Path) -> dict[str, str]:
    return {
        STAMPS: str(home / "stamps"),
        "HOME": str(home),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "NVFLARE_POC_WORKSPACE": str(home / "poc"),
    }


def hops_of(path: Path) -> list[float]:
    """The times at which each client began."""
    return [when for what, when in stamps_of(path) if what == "hop"]


def start(processes: Processes, home: Path, *words: object) -> Path:
    """Start the job, and return the file of its stamps."""
    command = [sys.executable, "-m", "benchmarks.peers.flare_job", *map(str, words)]
    processes.start(command, home / "log", environment(home))
    return home / "stamps"


def fedavg(processes: Processes, home: Path) -> tuple[list[float], None]:
    """Seconds of every round."""
    rounds = 8
    stamps = start(processes, home, "fedavg", "poc", 4, rounds, CNN_PARAMETERS)
    processes.watch(lambda: len(rounds_of(stamps)) == rounds)
    return rounds_of(stamps), None


def relay(processes: Processes, home: Path, parameters: int) -> tuple[list[float], None]:
    """Seconds from the beginning of each client to that of the next."""
    rounds = 5
    stamps = start(processes, home, "relay", "poc", 4, rounds, parameters)
    processes.watch(lambda: len(hops_of(stamps)) == 4 * rounds)
    rounds_of(stamps)
    hops = hops_of(stamps)
    return [after - before for before, after in itertools.pairwise(hops)], None


def simulation(processes: Processes, home: Path, clients: int = 368) -> tuple[list[float], None]:
    """Seconds of the only round; LimitError as soon as its pace shows that it cannot end in time."""
    stamps = start(processes, home, "fedavg", "simulator", clients, 1, CNN_PARAMETERS)

    def done() -> bool:
        found = stamps_of(stamps)
        taken = time.time() - found[0][1] if found else 0.0
        begun = len(hops_of(stamps))
        if taken > WARM_UP and taken / max(begun, 1) * clients > SECONDS:
            raise LimitError(
                f"stopped after {taken:.0f} s, when {begun} of {clients} clients had begun: "
                f"all would take about {taken / max(begun, 1) * clients:.0f} s, the limit is {SECONDS:.0f} s"
            )
        return len(rounds_of(stamps)) == 1

    processes.watch(done)
    return rounds_of(stamps), None


POC = "proof-of-concept deployment, mutual TLS, polls every 0.05 s"
CASES = {
    "fedavg-round": Case("nvflare", "fedavg-round", fedavg, POC),
    "368-clients": Case("nvflare", "368-clients", simulation, "simulator, a client process a core", first=0),
    "relay-hop": Case("nvflare", "relay-hop", lambda p, home: relay(p, home, CNN_PARAMETERS), f"Cyclic; {POC}", 3),
    "control-hop": Case(
        "nvflare", "control-hop", lambda p, home: relay(p, home, SMALL_PARAMETERS), f"Cyclic; {POC}", 3
    ),
}

if __name__ == "__main__":
    main(CASES, version("nvflare"))
