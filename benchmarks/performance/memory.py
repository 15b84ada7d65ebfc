"""Memory of processes, as /proc tells it. Linux."""

from __future__ import annotations

from pathlib import Path


def pss(pid: int) -> int:
    """Bytes of a process, pages that several share counted by their share."""
    return held(pid, "smaps_rollup", "Pss")


def uss(pid: int) -> int:
    """Bytes that only this process has."""
    return sum(held(pid, "smaps_rollup", name) for name in ("Private_Clean", "Private_Dirty"))


def resident(pid: int) -> int:
    """Bytes of a process, shared pages counted in full."""
    return held(pid, "status", "VmRSS")


def peak(pid: int) -> int:
    """The most resident bytes since its start, or since `begin_peak`; getrusage would count what a parent held."""
    return held(pid, "status", "VmHWM")


def begin_peak(pid: int) -> None:
    """Lets the peak begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def held(pid: int, file: str, field: str) -> int:
    """Bytes that a file of /proc tells of a process."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(pid)  # a zombie has none
