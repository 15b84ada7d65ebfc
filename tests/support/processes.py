"""Real processes of the system, for tests: started, listened to, and ended, with everything that they started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

import psutil

from tests.support.forks import STARTED, Forked, forks

Event = dict[str, Any]
T = TypeVar("T")

#: Long enough for a loaded machine; no test passes by waiting for it.
DEADLINE_S = 45.0
#: What a process gets to end once it was asked to, or its parent is gone.
LEAVE_S = 10.0
#: A line of --json may be long: a row of the history names every client.
LONGEST_LINE = 1 << 24


def top_server(
    folder: Path, *flags: str, env: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[Process]:
    """A top server on any free port, recording in `folder`/run unless the flags say otherwise."""
    command = ["top_server", "--json", "--listen", "127.0.0.1:0"]
    command += [] if "--run-dir" in flags else ["--run-dir", str(folder / "run")]
    return program([*command, *flags], folder / "top-server.log", env)


def resumed(directory: Path, *flags: str) -> AbstractAsyncContextManager[Process]:
    """The top server that goes on with the run in this directory; its log is beside the directory."""
    command = ["top_server", "--json", "--resume", str(directory), *flags]
    return program(command, directory.with_name("resumed.log"))


def node(
    folder: Path, address: str, *flags: str, name: str = "n0", env: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[Process]:
    """A node that joins the top server at `address`."""
    command = ["fedgsp_node", "start", "--json", "--top-server", address, "--name", name]
    return program([*command, *flags], folder / f"{name}.log", env)


@contextlib.asynccontextmanager
async def program(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """As `running`, for `python -m COMMAND`; forked from a process that has its imports, if it imports the same."""
    if env is not None or os.environ.get("PYTHONPATH") != STARTED.get("PYTHONPATH"):
        async with running([sys.executable, "-m", *command], log, env) as process:
            yield process
        return
    with log.open("ab") as errors:
        child = await forks().start(command, log.parent, errors.fileno(), LONGEST_LINE)
    process = Process(child, log)
    try:
        yield process
    finally:
        await process.end()


@contextlib.asynccontextmanager
async def running(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """Any process while the body lasts, started in the folder of `log`, which takes its stderr."""
    with log.open("ab") as errors:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=log.parent,
            env={**os.environ, **(env or {})},
            limit=LONGEST_LINE,
        )
    process = Process(child, log)
    try:
        yield process
    finally:
        await process.end()


class Process:
    """A process that a test started: what it says on stdout, line by line, and on stderr, in `log`."""

    def __init__(self, child: asyncio.subprocess.Process | Forked, log: Path) -> None:
        self.log = log
        #: Every line of stdout so far, and those that are JSON objects.
        self.lines: list[str] = []
        self.events: list[Event] = []
        self._child = child
        self._more = asyncio.Condition()
        self._silent = False
        self._listening = asyncio.create_task(self._listen(), name=f"listen to {log.stem}")

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        return self._child.returncode

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return self.log.read_text(errors="replace")

    async def event(self, kind: str, deadline_s: float = DEADLINE_S, **fields: Any) -> Event:
        """The first event of this kind with these fields, past or to come; AssertionError if it does not come."""
        wanted = {"event": kind, **fields}

        def matches(event: Event) -> bool:
            return all(event.get(name) == value for name, value in wanted.items())

        return await self._first(self.events, matches, f"event like {wanted}", deadline_s)

    async def line(self, part: str, deadline_s: float = DEADLINE_S) -> str:
        """The first line of stdout with this in it, past or to come; AssertionError if it does not come."""
        return await self._first(self.lines, lambda line: part in line, f"line with {part!r}", deadline_s)

    async def ended(self, deadline_s: float = DEADLINE_S) -> int:
        """The exit code, once it has ended by itself and all its lines are in; AssertionError if it goes on."""
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(self._listening)
                return await self._child.wait()
        except TimeoutError:
            raise AssertionError(f"it still runs after {deadline_s:g} s; {self._last_words()}") from None

    def send(self, number: Signals) -> None:
        """Signals it, and nothing that it started."""
        self._child.send_signal(number)

    def family(self) -> list[psutil.Process]:
        """It and all that it started, as of now: taken before a kill, it says afterwards what was left behind."""
        try:
            this = psutil.Process(self.pid)
            return [this, *this.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    async def end(self) -> None:
        """Ends it if it still runs; AssertionError if something that it started stays, which is then ended too."""
        family = self.family()
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        try:
            await asyncio.wait_for(self._child.wait(), LEAVE_S)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        await assert_gone(family)
        await self._listening

    async def _listen(self) -> None:
        assert self._child.stdout is not None
        try:
            async for raw in self._child.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                async with self._more:
                    self.lines.append(line)
                    if line.startswith("{"):
                        self.events.append(json.loads(line))
                    self._more.notify_all()
        finally:
            async with self._more:
                self._silent = True
                self._more.notify_all()

    async def _first(self, heard: list[T], matches: Callable[[T], bool], what: str, deadline_s: float) -> T:
        seen = 0
        try:
            async with asyncio.timeout(deadline_s), self._more:
                while True:
                    for item in heard[seen:]:
                        if matches(item):
                            return item
                    seen = len(heard)
                    if self._silent:
                        raise AssertionError(f"it ended without {what}; {self._last_words()}")
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"no {what} within {deadline_s:g} s; {self._last_words()}") from None

    def _last_words(self) -> str:
        return f"last on stdout: {self.lines[-5:]}; last on stderr: {self.errors.splitlines()[-10:]}"


async def assert_gone(processes: Iterable[psutil.Process]) -> None:
    """Waits for these to end; AssertionError if some do not, which are then killed."""
    left = await asyncio.to_thread(end_those_left, list(processes))
    assert not left, f"left behind: {left}"


def end_those_left(processes: Sequence[psutil.Process], grace_s: float = LEAVE_S) -> list[str]:
    """Waits for these to end, kills those that do not, and says which those were."""
    deadline = time.monotonic() + grace_s
    left = [process for process in processes if _lives(process)]
    while left and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.05)
        left = [process for process in left if _lives(process)]
    named = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            named.append(f"{process.pid}: {shlex.join(process.cmdline())}")
            process.kill()
    psutil.wait_procs(left, timeout=grace_s)
    return named


def _lives(process: psutil.Process) -> bool:
    try:
        # In a container nobody may collect a dead orphan.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
