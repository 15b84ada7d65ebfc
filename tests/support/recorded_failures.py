"""Plays runs that go wrong, with real processes, and keeps what they record, for the tests of the web page.

`python -m tests.support.recorded_failures FOLDER [NAME ...]` plays them, in some minutes. The recordings that the
tests read are in tests/top_server/web/failures. FOLDER/full-disk/run must be a disk of its own of 1.5 MB, such as a
tmpfs.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import psutil

from tests.support.processes import Process, node, running

FAULTY = ("--task", "tests.support.faulty_task:FaultyDigits")
EIGHT = ("--task-option", "clients=8")
LOCAL = ("--local-nodes", "2", "--clients", "8")
DEADLINE_S = 300.0
#: What takes the place of folders of this machine in a recording.
SOMEWHERE = "/srv/runs"


def run(folder: Path, *flags: str) -> contextlib.AbstractAsyncContextManager[Process]:
    command = [sys.executable, "-m", "top_server", "--json", "--listen", "127.0.0.1:0", "--rounds", "4"]
    return running([*command, "--run-dir", str(folder / "run"), *flags], folder / "top-server.log")


async def at_its_end(folder: Path, *flags: str) -> None:
    async with run(folder, *flags) as played:
        await played.ended(DEADLINE_S)


async def after_a_round(folder: Path, act: Callable[[Process], None], *flags: str, ends: bool = True) -> None:
    async with run(folder, *LOCAL, "--rounds", "30", *flags) as played:
        await played.event("round_finished", DEADLINE_S, round=2)
        act(played)
        if ends:
            await played.ended(DEADLINE_S)


def kill_a_node(played: Process) -> None:
    [found] = [
        one
        for one in psutil.Process(played.pid).children(recursive=True)
        if "--name node-1" in " ".join(one.cmdline())
    ]
    found.send_signal(signal.SIGKILL)


async def node_killed(folder: Path) -> None:
    async with run(folder, *LOCAL, "--rounds", "6") as played:
        await played.event("round_finished", DEADLINE_S, round=1)
        kill_a_node(played)
        await played.ended(DEADLINE_S)


async def too_few_clients(folder: Path) -> None:
    await after_a_round(folder, kill_a_node, "--min-clients", "8", "--join-timeout", "30")


async def stopped(folder: Path) -> None:
    await after_a_round(folder, lambda played: played.send(signal.SIGTERM))


async def killed(folder: Path) -> None:
    await after_a_round(folder, lambda played: played.send(signal.SIGKILL))


async def refused(folder: Path) -> None:
    """A node with other options of the task, which is sent away; another node comes in its place."""
    flags = ("--min-nodes", "2", "--task-option", "clients=8")
    async with run(folder, *flags) as played:
        address = (await played.event("listening", DEADLINE_S))["address"]
        async with node(folder, address, *EIGHT, "--clients", "0-3", name="berlin"):
            async with node(folder, address, "--task-option", "clients=9", "--clients", "4-7", name="paris") as wrong:
                await wrong.ended(DEADLINE_S)
            async with node(folder, address, *EIGHT, "--clients", "4-7", name="rome"):
                await played.ended(DEADLINE_S)


async def another_file(folder: Path) -> None:
    """A node whose file of the task is not that of the other node."""
    text = "from fedgsp_node.tasks.digits import Digits\n\n\nclass Clinics(Digits):\n    pass\n"
    for name, more in (("here", ""), ("there", "# changed\n")):
        (folder / name).mkdir()
        (folder / name / "clinics.py").write_text(text + more, encoding="utf-8")
    flags = ("--min-nodes", "2", "--rounds", "2", "--task", "clinics:Clinics", *EIGHT)
    async with run(folder, *flags) as played:
        address = (await played.event("listening", DEADLINE_S))["address"]
        task = ("--task", "clinics:Clinics", *EIGHT)
        async with contextlib.AsyncExitStack() as stack:
            for name, place, clients in (("berlin", "here", "0-3"), ("paris", "there", "4-7")):
                command = [sys.executable, "-m", "fedgsp_node", "start", "--top-server", address, "--name", name]
                started = running([*command, *task, "--clients", clients], folder / place / "node.log")
                await stack.enter_async_context(started)
            await played.ended(DEADLINE_S)


async def no_memory(folder: Path) -> None:
    """A client whose model does not fit into memory."""
    await at_its_end(folder, "--task", "tests.support.greedy_task:GreedyDigits", *EIGHT, *LOCAL)


async def full_disk(folder: Path) -> None:
    """A run on a disk that becomes full, stopped when it waits for room."""
    async with run(folder, *LOCAL, "--rounds", "200", "--keep-models", "all") as played:
        while "waits for room" not in played.errors:  # noqa: ASYNC110 (another process writes that log)
            await asyncio.sleep(0.5)
        played.send(signal.SIGKILL)
        await played.ended(DEADLINE_S)


def plain(*flags: str) -> Callable[[Path], Coroutine[None, None, None]]:
    return lambda folder: at_its_end(folder, *flags)


FAILURES: dict[str, Callable[[Path], Coroutine[None, None, None]]] = {
    "nobody-trained": plain(*FAULTY, "--task-option", "raises=0+1+2+3+4+5+6+7", *EIGHT, *LOCAL),
    "bad-model": plain(*FAULTY, "--task-option", "diverges=2", *EIGHT, *LOCAL),
    "task-raises": plain(*FAULTY, "--task-option", "raises=3", *EIGHT, *LOCAL),
    "node-killed": node_killed,
    "too-few-clients": too_few_clients,
    "stopped": stopped,
    "killed": killed,
    "refused": refused,
    "another-task-file": another_file,
    "no-memory": no_memory,
    "full-disk": full_disk,
}


def keep(folder: Path, kept: Path) -> None:
    """Keeps the record of a run, without names of folders of this machine."""
    kept.mkdir(parents=True, exist_ok=True)
    here = (str(folder), str(folder.resolve()), str(Path.cwd()))
    for name in ("config.toml", "events.jsonl", "history.jsonl"):
        text = (folder / "run" / name).read_text(encoding="utf-8")
        for place in here:
            text = text.replace(place, SOMEWHERE)
        (kept / name).write_text(text, encoding="utf-8")


def main(words: Sequence[str]) -> None:
    root = Path(words[0])
    for name in words[1:] or FAILURES:
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()
        asyncio.run(FAILURES[name](folder))
        keep(folder, root / "kept" / name)
        sys.stdout.write(f"{name} is recorded\n")


if __name__ == "__main__":
    main(sys.argv[1:])
