"""Runs a process until it ends, until a signal stops it, or until its parent ends."""

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from fedgsp import logs
from fedgsp.errors import PeerError
from fedgsp.limits import descriptors
from fedgsp.processes import run_module
from fedgsp.tensors.memory import keep_freed

logger = logging.getLogger(__name__)

#: If this environment variable is "stdin", the process ends when its standard input ends. The parent holds the other
#: end of that socket, so this works even after SIGKILL of the parent.
LIFELINE_VARIABLE = "FEDGSP_LIFELINE"
#: How long a process may take to end after SIGTERM, and a thread when the process leaves.
STOP_GRACE_S = 5.0
#: How long a process waits for the line that its parent tells it.
TOLD_WITHIN_S = 10.0
#: Exit codes of a process that was stopped by a signal: 128 plus the signal's number, as in shells.
#: SIGHUP comes when a terminal or an SSH session is closed.
SIGNAL_EXIT_CODES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}
#: Codes of the signals that several senders may send for one stop. The second one must not cut off what the first one
#: began. A scheduler sends SIGTERM to all processes of a job, and by way of its script; the shell and the kernel send
#: SIGHUP.
_ONCE = {SIGNAL_EXIT_CODES[number] for number in (signal.SIGHUP, signal.SIGTERM)}

#: Set when this process is asked to end.
_ending = threading.Event()
#: Signals that the event loop of this process handles. They have their default effect on child processes that the
#: user's code forks, for example through `multiprocessing`. asyncio notices a signal through a byte in a pipe that the
#: signal handler writes. A forked child would inherit handler and pipe: a SIGTERM to the child (as from `Pool`) would
#: stop this process, and the child would continue.
_handled: set[int] = set()
#: The mask of signals to go back to after a fork.
_forking = threading.local()


def run(main: Coroutine[Any, Any, None]) -> int:
    """Runs a process's main coroutine until it ends, or until a signal or the lifeline stops it.

    Returns the exit code. Raises what the coroutine raises.
    """
    keep_freed()
    descriptors.raise_limit()
    return asyncio.run(_run(main))


def sleep(seconds: float) -> bool:
    """Lets the thread wait, even that of the event loop; at once False if this process is asked to end."""
    if threading.current_thread() is not threading.main_thread():
        return not _ending.wait(seconds)
    # The event loop cannot run its handlers now. It is told of the signals all the same, and runs them later.
    before = {number: signal.signal(number, lambda *_: _ending.set()) for number in _stopping()}
    try:
        return not _ending.wait(seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopping() -> list[signal.Signals]:
    """The signals that stop this process. `nohup` has SIGHUP ignored, and means it."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNAL_EXIT_CODES if not (ignores and number is signal.SIGHUP)]


def is_ending() -> bool:
    """Whether this process is asked to end."""
    return _ending.is_set()


def is_child() -> bool:
    """Whether another process of FedGSP has started this one, and chosen its command line."""
    return os.environ.get(LIFELINE_VARIABLE) == "stdin"


async def _run(main: Coroutine[Any, Any, None]) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_Threads(thread_name_prefix="aside"))
    task = asyncio.ensure_future(main)
    asked: list[int] = []
    stopping = _stopping()

    _ending.clear()

    def stop(code: int) -> None:
        if code in asked and code in _ONCE:
            return
        _ending.set()
        asked.append(code)
        task.cancel()

    for number in stopping:
        loop.add_signal_handler(number, stop, SIGNAL_EXIT_CODES[number])
    if is_child():
        loop.add_reader(0, _read_lifeline, stop, loop)
    _handled.update(stopping)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise
        return asked[0]
    finally:
        _handled.clear()
        for number in stopping:
            loop.remove_signal_handler(number)
    return 0


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Does `work` while the body runs, and cancels it then. Waits until it has ended.

    An error in `work` is logged at once, and does not end the body.
    """
    task = asyncio.create_task(_logged(work, name), name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        work.close()  # it has not begun if the body ended at once


async def _logged(work: Coroutine[Any, Any, None], name: str) -> None:
    try:
        await work
    except Exception:
        logger.exception("this process goes on without a task that has failed: %s", name)


def _hold_signals() -> None:
    """Block the signals until the child has reset its handlers: a signal may come before its first line runs."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _let_signals_come() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _take_leave_of_the_loop() -> None:
    if _handled:
        signal.set_wakeup_fd(-1)
        for number in _handled:
            signal.signal(number, signal.SIG_DFL)
        _handled.clear()
    _let_signals_come()


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_come, after_in_child=_take_leave_of_the_loop)


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


def told() -> str:
    """The line that the parent of this process writes to it at the start; raises PeerError if none comes."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([0], [], [], TOLD_WITHIN_S)
        more = os.read(0, 1) if ready else b""  # one by one: what follows is for `_read_lifeline`
        if not more:
            raise PeerError(
                "this process got no settings from a parent", "do not start it by hand: the top server starts it"
            )
        line += more
    return line.decode().strip()


def leave(code: int) -> NoReturn:
    """Ends this process with an exit code, even if a thread does not end within STOP_GRACE_S seconds."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(STOP_GRACE_S)
            if thread.is_alive():
                logger.warning(
                    "thread %s did not end in %.0f s; the process ends without it", thread.name, STOP_GRACE_S
                )
                logs.flush()
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream may be closed or full
                        stream.flush()
                os._exit(code)
    sys.exit(code)


def python_module(name: str) -> list[str]:
    """The command that runs a module of FedGSP with this interpreter, never a file of the working directory."""
    return [sys.executable, "-P", run_module.__file__, name]
