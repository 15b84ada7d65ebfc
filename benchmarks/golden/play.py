"""Plays a case with real processes, and records its results."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.golden.cases import COMMON, Case
from benchmarks.golden.checkout import Checkout, flags
from benchmarks.golden.digests import records

#: A run takes a few seconds; a machine with other work may be much slower.
DEADLINE_S = 180.0
LOOK_EVERY_S = 0.02


class FailedError(Exception):
    """A run did not end as its case says."""


def play_all(
    checkout: Checkout, chosen: Mapping[str, Case], jobs: int, on_end: Callable[[str, dict[str, Any]], None]
) -> dict[str, Any]:
    """Plays cases, `jobs` at once, and returns the record of each by name; calls `on_end` after each case."""

    def one(name: str) -> tuple[str, dict[str, Any]]:
        record = play(checkout, chosen[name])
        on_end(name, record)
        return name, record

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, chosen))


def play(checkout: Checkout, case: Case) -> dict[str, Any]:
    """The record of one `case`: `runs` by directory, or `failed`, a text; and how many `seconds` it took."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        try:
            _run(checkout, case, folder)
            runs = records(folder)
            _check(case, runs)
            found: dict[str, Any] = {"runs": runs}
        except FailedError as error:
            found = {"failed": str(error)}
    return {"case": dataclasses.asdict(case), **found, "seconds": round(time.monotonic() - begin, 1)}


def _run(checkout: Checkout, case: Case, folder: Path) -> None:
    shutil.copyfile(Path(__file__).with_name("task.py"), folder / "golden_task.py")
    command = checkout.top_server("--run-dir", "run", *flags(case, checkout.help))
    processes = 3  # the top server, and the templates of nodes and group managers; earlier checkouts start more
    if case.killed_after:
        _killed(checkout, command, folder, case.killed_after)
        checkout.check_processes(folder, processes)
        command, processes = checkout.top_server("--resume", "run"), 2 * processes
    _wait(_started(checkout, command, folder), folder)
    checkout.check_processes(folder, processes)


def _check(case: Case, runs: Mapping[str, Any]) -> None:
    """Raises FailedError if a run does not show what its case is for."""
    history = runs["run"]["history"]
    if len(history) != int({**COMMON, **case.settings}["rounds"]) or not runs["run"]["models"]:
        raise FailedError(f"{len(history)} rounds with {len(runs['run']['models'])} models")
    skipped = sum(row["clients_skipped"] for row in history)
    if skipped != case.skipped:
        raise FailedError(f"{skipped} clients were skipped, not {case.skipped}")
    if ("local-run" in case.settings) != (len(runs) == 2):
        raise FailedError(f"there are runs {', '.join(runs)}")


def _started(checkout: Checkout, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=checkout.environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code = process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise FailedError(f"it still ran after {DEADLINE_S:g} s; {_tail(folder)}") from None
    except BaseException:
        _kill(process)
        raise
    if code:
        raise FailedError(f"exit code {code}; {_tail(folder)}")


def _killed(checkout: Checkout, command: list[str], folder: Path, number: int) -> None:
    """Kills the top server as soon as its history has so many rounds, and waits until its children are gone."""
    history = folder / "run" / "history.jsonl"
    process = _started(checkout, command, folder)
    deadline = time.monotonic() + DEADLINE_S
    try:
        while not history.exists() or history.read_bytes().count(b"\n") < number:
            if process.poll() is not None or time.monotonic() > deadline:
                raise FailedError(f"it did not reach the end of round {number}; {_tail(folder)}")
            time.sleep(LOOK_EVERY_S)
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a top server, and waits until its children have left; kills the children that stay."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    process.kill()
    process.wait()
    deadline = time.monotonic() + 15
    while any(map(_lives, children)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    for child in filter(_lives, children):
        child.kill()


def _lives(process: psutil.Process) -> bool:
    try:
        # In a container, no process may collect a dead orphan.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _tail(folder: Path) -> str:
    lines = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    return "its log ends: " + " | ".join(lines[-8:])
