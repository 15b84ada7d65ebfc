"""Starts processes, ends child processes with their parent, and stops processes in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from fedgsp import forks, run_module
from fedgsp.errors import PeerError
from fedgsp.memory import keep_freed

logger = logging.getLogger(__name__)

#: If this environment variable is "stdin", the process ends when its standard input ends. The parent holds the other
#: end of that pipe, so this works even after SIGKILL of the parent.
LIFELINE_VARIABLE = "FEDGSP_LIFELINE"
#: How long a child may take until it is ready.
READY_TIMEOUT_S = 30.0
#: How long a process may take to end after SIGTERM, and a thread when the process leaves.
STOP_GRACE_S = 5.0
#: Number of lines of a log that an error message quotes.
TAIL_LINES = 5
#: Exit codes of a process that was stopped by a signal: 128 plus the signal's number, as in shells.
SIGNAL_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def run(main: Coroutine[Any, Any, None]) -> int:
    """Runs a process's main coroutine until it ends, or until a signal or the lifeline stops it.

    Returns the exit code. Raises what the coroutine raises.
    """
    keep_freed()
    return asyncio.run(_run(main))


async def _run(main: Coroutine[Any, Any, None]) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_Threads(thread_name_prefix="aside"))
    task = asyncio.ensure_future(main)
    asked: list[int] = []

    def stop(code: int) -> None:
        asked.append(code)
        task.cancel()

    for number, code in SIGNAL_EXIT_CODES.items():
        loop.add_signal_handler(number, stop, code)
    if os.environ.get(LIFELINE_VARIABLE) == "stdin":
        loop.add_reader(0, _read_lifeline, stop, loop)
    try:
        with forks.kept_apart(SIGNAL_EXIT_CODES):
            await task
    except asyncio.CancelledError:
        if not asked:
            raise
        return asked[0]
    finally:
        for number in SIGNAL_EXIT_CODES:
            loop.remove_signal_handler(number)
    return 0


class _Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. Without this class, asyncio would wait for minutes for a busy thread."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def _read_lifeline(stop: Any, loop: asyncio.AbstractEventLoop) -> None:
    try:
        rest = os.read(0, 4096)
    except OSError:
        rest = b""
    if not rest:
        loop.remove_reader(0)
        stop(SIGNAL_EXIT_CODES[signal.SIGTERM])


async def spawn(command: Sequence[str], log: Path | None, says_ready: bool = True) -> asyncio.subprocess.Process:
    """Starts a child process that ends with this process. Its output goes to the end of `log`, or is discarded.

    With `says_ready`, standard output is a pipe instead, from which `ready_line` reads.
    """
    with (log or Path(os.devnull)).open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,  # the lifeline: the pipe closes when this process ends, then the child ends
            stdout=asyncio.subprocess.PIPE if says_ready else output,
            stderr=output,
            env={**os.environ, LIFELINE_VARIABLE: "stdin"},
            start_new_session=True,  # Ctrl-C then reaches the parent only, which stops its children in order
        )


async def ready_line(child: asyncio.subprocess.Process, name: str, log: Path | None) -> str:
    """The line that the child `name` prints when it is ready; PeerError with the end of its log if there is none."""
    assert child.stdout is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), READY_TIMEOUT_S)
    except TimeoutError:
        await stop(child)
        why = f"was not ready after {READY_TIMEOUT_S:.0f} s"
    else:
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        with contextlib.suppress(TimeoutError):  # its own exit code says more than the code of our signal
            await asyncio.wait_for(child.wait(), STOP_GRACE_S)
        why = f"did not start (exit code {await stop(child)})"
    raise PeerError(f"{name} {why}", f"its log ends: {tail(log)}")


def tail(log: Path | None, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, joined to one line."""
    if log is None or not log.exists():
        return "(no log)"
    return " | ".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(empty)"


async def stop(child: asyncio.subprocess.Process, grace_s: float = STOP_GRACE_S) -> int:
    """Ends a child of `spawn`: SIGTERM, then after `grace_s` seconds SIGKILL. Returns its exit code."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            await asyncio.wait_for(child.wait(), grace_s)
        except BaseException as error:  # the child takes too long, or this wait was cancelled
            # Kills the whole session: its own children would keep its pipes open, and the wait would not end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
            if not isinstance(error, TimeoutError):
                raise
    if child.stdin is not None:
        child.stdin.close()
    return child.returncode if child.returncode is not None else -1


def leave(code: int) -> NoReturn:
    """Ends this process with an exit code, even if a thread does not end within STOP_GRACE_S seconds."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(STOP_GRACE_S)
            if thread.is_alive():
                logger.warning(
                    "thread %s did not end in %.0f s; the process ends without it", thread.name, STOP_GRACE_S
                )
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream may be closed or full
                        stream.flush()
                os._exit(code)
    sys.exit(code)


def python_module(name: str) -> list[str]:
    """The command that runs a module of FedGSP with this interpreter, never a file of the working directory."""
    return [sys.executable, "-P", run_module.__file__, name]
