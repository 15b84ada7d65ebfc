"""Reads the memory of processes from /proc. This needs Linux."""

from __future__ import annotations

from pathlib import Path


def pss(pid: int) -> int:
    """Proportional set size in bytes: of a page shared by n processes, 1/n counts."""
    return held(pid, "smaps_rollup", "Pss")


def uss(pid: int) -> int:
    """Unique set size in bytes: pages that no other process shares."""
    return sum(held(pid, "smaps_rollup", name) for name in ("Private_Clean", "Private_Dirty"))


def resident(pid: int) -> int:
    """Resident set size in bytes: shared pages count in full."""
    return held(pid, "status", "VmRSS")


def peak(pid: int) -> int:
    """Peak of resident bytes since the start, or since `begin_peak`. getrusage would include memory of the parent."""
    return held(pid, "status", "VmHWM")


def begin_peak(pid: int) -> None:
    """Resets the peak to the present value."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def held(pid: int, file: str, field: str) -> int:
    """The value of a field, in bytes, from a file of /proc about a process."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(pid)  # a zombie has no memory
