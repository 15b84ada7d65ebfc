"""The result of a case, and the command line for the cases of one system."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.processes import CaseError, LimitError, Processes

#: Limits of a case.
SECONDS, MEMORY_MIB = 300.0, 20 * 1024.0


@dataclass(frozen=True)
class Result:
    """Seconds of each round or hop, and the peak of memory."""

    system: str
    version: str
    case: str
    seconds: tuple[float, ...] = ()
    peak_mib: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One case. Its work runs in a new folder; it returns seconds, and MiB unless all processes are measured."""

    system: str
    name: str
    work: Callable[[Processes, Path], tuple[list[float], float | None]]
    note: str = ""
    #: Number of first rounds or hops that are not counted.
    first: int = 1
    limit_seconds: float = SECONDS


def stamps_of(path: Path) -> list[tuple[str, float]]:
    """Names and times of stamps, in the order of time. An incomplete last line is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return sorted(((what, float(when)) for what, when in map(str.split, lines)), key=lambda each: each[1])


def rounds_of(path: Path) -> list[float]:
    """Seconds of each finished round."""
    begun, durations = 0.0, []
    for what, when in stamps_of(path):
        if what == "failed":
            raise CaseError("an answer was not what it should be")
        if what == "begin":
            begun = when
        elif what == "end":
            durations.append(when - begun)
    return durations


def run(case: Case, version: str) -> Result:
    """Run a case. If it fails or exceeds a limit, its note says so. If it fails, its log is printed to stderr."""
    seconds: list[float] = []
    note = case.note
    with tempfile.TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True) as folder:
        with Processes(case.limit_seconds, MEMORY_MIB) as processes:
            peak = None
            try:
                seconds, peak = case.work(processes, Path(folder))
            except CaseError as error:
                note = f"{error}; {note}"
                log = Path(folder, "log")
                if log.exists() and not isinstance(error, LimitError):
                    sys.stderr.write(log.read_text(errors="replace")[-4000:])
        peak = processes.peak_mib if peak is None else peak
    return Result(case.system, version, case.name, tuple(seconds[case.first :]), (peak,), note)


def main(cases: Mapping[str, Case], version: str) -> None:
    """List the cases, or run the case on the command line and print its result as a line of JSON."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if len(sys.argv) == 1:
        sys.stdout.write("\n".join(cases) + "\n")
    else:
        sys.stdout.write(json.dumps(asdict(run(cases[sys.argv[1]], version))) + "\n")
