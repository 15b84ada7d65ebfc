"""Looks at disk and memory of this machine, and judges them by the size of the model."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedgsp.errors import DataError
from fedgsp.owners import check_tree
from fedgsp.tensors.spill import SPILLED_BYTES, spill_folder
from fedgsp_node.check.facts import Facts, Memory, Room
from fedgsp_node.check.finding import Finding, bad, good, warning

#: Free bytes that a node needs in each folder, however small its model is.
LEAST_FREE = 16 << 20
#: Models in the memory of a training: weights, gradients, two moments of an optimiser, the start, and the result.
IN_TRAINING = 6
#: Models that stay for each client between its trainings: start and result of the last one.
BETWEEN_TRAININGS = 2
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def rooms(state_dir: Path | None, model_bytes: int, clients: int) -> tuple[Room, ...]:
    """The folders that a node writes to, with free and needed bytes.

    Raises DataError if one cannot be written, and ConfigError if --state-dir belongs to another user.
    """
    spilled = model_bytes if model_bytes >= SPILLED_BYTES else 0
    needs = [(spill_folder(), "large models", BETWEEN_TRAININGS * clients * spilled + 2 * spilled)]
    if state_dir is not None:
        check_tree("--state-dir", state_dir)
        needs.append((state_dir, "--state-dir", BETWEEN_TRAININGS * clients * model_bytes))
    return tuple(_room(folder, purpose, max(LEAST_FREE, needed)) for folder, purpose, needed in needs)


def _room(folder: Path, purpose: str, needed: int) -> Room:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        disk = os.statvfs(existing)
    except OSError as error:
        raise DataError(
            f"{folder} ({purpose}) cannot be written: {error.strerror}", "give a folder of this user, with free space"
        ) from None
    return Room(folder, purpose, disk.f_bavail * disk.f_frsize, needed)


def judge_disk(found: tuple[Room, ...], facts: Facts) -> Finding:
    """Free space of the folders against what the node needs there."""
    words = "; ".join(f"{room.folder} ({room.purpose}) has {_mb(room.free)} free" for room in found)
    full = [room for room in found if room.free < room.needed]
    if full:
        needs = " and ".join(f"{_mb(room.needed)} in {room.folder}" for room in full)
        return bad(f"{words}: this node needs {needs}", f"make room there, or {_elsewhere(full)}")
    tight = [room for room in found if room.free < 2 * room.needed]
    if tight:
        return warning(f"{words}: that is less than twice what this node needs", f"make room, or {_elsewhere(tight)}")
    return good(words)


def _elsewhere(found: list[Room]) -> str:
    flags = {"--state-dir": "give another --state-dir", "large models": "set TMPDIR to another folder"}
    return " and ".join(flags[room.purpose] for room in found)


def memory(model_bytes: int, clients: int) -> Memory | None:
    """Available and needed bytes; None where this machine does not say what is available.

    Data of the task count already: they were loaded before.
    """
    found = list(_available())
    held = BETWEEN_TRAININGS * clients * (model_bytes if model_bytes < SPILLED_BYTES else 0)
    return Memory(min(found), IN_TRAINING * model_bytes + held) if found else None


def _available() -> Iterator[int]:
    """What the machine, and what the group of processes of this one, can still take."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        yield 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    with contextlib.suppress(OSError, ValueError):  # "max": there is no limit
        yield int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())


def judge_memory(found: Memory, facts: Facts) -> Finding:
    """Available memory against what training takes."""
    words = f"{_mb(found.available)} are free, and training takes about {_mb(found.needed)} beside activations"
    if found.available < found.needed:
        return bad(words, "end other programs, host fewer clients on this node, or use a smaller model")
    if found.available < 2 * found.needed:
        return warning(words, "end other programs: activations need memory too")
    return good(words)


def _mb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
