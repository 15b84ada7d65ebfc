"""Child processes: forked from a template, ended with this process, and stopped in order."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

from fedgsp.errors import PeerError, not_started
from fedgsp.files import appending
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, STOP_GRACE_S, python_module
from fedgsp.within import within

logger = logging.getLogger(__name__)

#: How long a template may take until it forks a child, its own imports from a slow disk included.
FORK_TIMEOUT_S = 600.0
#: Pause until a full socket to a template is tried again.
FULL_AGAIN_S = 0.02
#: How long a child may take until it is ready.
READY_TIMEOUT_S = 30.0
#: Number of lines of a log that an error message quotes.
TAIL_LINES = 5
#: The exit code of a child whose template ended before it: nobody was told the real one.
UNKNOWN_EXIT_CODE = -1
#: In place of a process id: a template could not fork, and tells the number of the error.
NOT_FORKED = 0


class Child:
    """A process that a template forked.

    A socket is its lifeline, and its standard output if it is to say that it is ready.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = 0
        #: The exit code, negative for a signal; None while the process runs.
        self.returncode: int | None = None
        self.stdout = reader
        self._lifeline = writer
        #: Done when the process runs; PeerError if its template cannot start it.
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Waits until the process has ended; returns its exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send(self, number: signal.Signals) -> None:
        """Sends the process a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def tell(self, line: str) -> None:
        """Writes a line to the standard input of the process, which `fedgsp.processes.lifecycle.told` reads."""
        self._lifeline.write(f"{line}\n".encode())

    def close(self) -> None:
        """Cuts the lifeline."""
        self._lifeline.close()

    def has_started(self, pid: int) -> None:
        """Notes the process id. A process that nobody waits for any more is killed."""
        self.pid = pid
        if self.started.cancelled():
            self.send(signal.SIGKILL)
        else:
            self.started.set_result(None)

    def cannot_start(self, error: PeerError) -> None:
        """Notes why the process could not be started."""
        if not self.started.cancelled():
            self.started.set_exception(error)

    def has_ended(self, code: int) -> None:
        """Notes the exit code."""
        self.returncode = code
        self._ended.set()


class Template:
    """A process that has imported `modules` and forks itself for every child; see `fedgsp.processes.template`.

    It starts when it is first needed. Use it in `contextlib.aclosing`, so that it ends with the block.
    Children end with this process, even after SIGKILL: this process holds the other ends of their lifelines.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environment` has variables that the environment of this process may lack."""
        self._modules = modules
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._sending = asyncio.Lock()
        #: Children that are asked for, in this order.
        self._asked: list[Child] = []
        self._running: dict[int, Child] = {}

    async def start(self) -> None:
        """Starts the process if it does not run; does not wait for its imports. Raises PeerError."""
        try:
            async with self._starting:
                if self._process is None:
                    await self._begin()
        except OSError as error:
            raise not_started(f"the template of {self._names}", error) from None

    async def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            self._process = await asyncio.create_subprocess_exec(
                *python_module("fedgsp.processes.template"),
                *self._modules,
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # setproctitle would write the titles of children over their environment without SPT_NOENV.
                env={**self._environment, **os.environ, LIFELINE_VARIABLE: "stdin", "SPT_NOENV": "1"},
                start_new_session=True,  # Ctrl-C then reaches the parent only, which stops its children in order
            )
            undo.pop_all()
        self._socket = ours
        self._listening = asyncio.create_task(self._listen(self._process), name="listen to a template")

    async def spawn(self, command: Sequence[str], log: Path | int | None, says_ready: bool = True) -> Child:
        """Forks a child that runs `command`, a module with its arguments. Its output goes to the end of `log`.

        A log may be a file descriptor of this process. Without a log, the output is discarded.

        With `says_ready`, standard output goes to `Child.stdout` instead, from which `ready_line` reads. Raises
        PeerError if the template cannot start, or does not fork in FORK_TIMEOUT_S, or if this machine lacks what a
        process needs: descriptors, memory, or room for another process.
        """
        await self.start()
        try:
            return await self._spawn(command, log, says_ready)
        except OSError as error:
            raise not_started(f"a process of {self._names}", error) from None

    async def _spawn(self, command: Sequence[str], log: Path | int | None, says_ready: bool) -> Child:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs, _opened(log) as output:
                child = Child(*await asyncio.open_unix_connection(sock=ours))
                undo.callback(child.close)
                streams = [theirs.fileno(), (theirs if says_ready else output).fileno(), output.fileno()]
                try:
                    async with asyncio.timeout(FORK_TIMEOUT_S):
                        await self._ask(child, json.dumps(list(command)).encode() + b"\n", streams)
                        await child.started
                except TimeoutError:
                    raise PeerError(
                        f"the template of {self._names} started no process in {FORK_TIMEOUT_S:.0f} s",
                        "see whether it is stopped, or its disk hangs",
                    ) from None
            undo.pop_all()
        return child

    async def _ask(self, child: Child, request: bytes, streams: list[int]) -> None:
        """Asks for a child. Requests are answered in their order, so that none may be lost in a full socket."""
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._socket, [request], streams)
                except BlockingIOError:  # the template still imports, and many children were asked for
                    await asyncio.sleep(FULL_AGAIN_S)
                    continue
                except OSError as error:
                    if self._process is None:
                        raise self._ended(str(error)) from None
                    if not isinstance(error, ConnectionError):
                        raise
                    # It ended a moment ago. That is not known yet, and `_over` will say why.
                return self._asked.append(child)

    async def aclose(self) -> None:
        """Ends the template. Its children are to be stopped before."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()  # nothing is in it that has to be saved
            try:
                await asyncio.shield(self._listening)
            except asyncio.CancelledError:
                await self._listening  # a killed process ends at once
                raise

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        rest = b""
        try:
            while data := await asyncio.get_running_loop().sock_recv(self._socket, 4096):
                *lines, rest = (rest + data).split(b"\n")
                for pid, code in map(json.loads, lines):
                    self._hear(pid, code)
        except ConnectionError:
            pass
        except Exception:
            logger.exception("the template of %s says what no template says: it is ended", self._names)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        _, said = await process.communicate()
        self._over(f"exit code {process.returncode}: {_end_of(said.decode(errors='replace')) or '(no output)'}")

    def _hear(self, pid: int, code: int | None) -> None:
        if pid == NOT_FORKED:
            self._asked.pop(0).cannot_start(
                not_started(f"a process of {self._names}", OSError(code, os.strerror(code or 0)))
            )
        elif code is not None:
            self._running.pop(pid).has_ended(code)
        else:
            self._running[pid] = self._asked.pop(0)
            self._running[pid].has_started(pid)

    @property
    def _names(self) -> str:
        return " and ".join(self._modules)

    def _ended(self, why: str) -> PeerError:
        return PeerError(f"the template of {self._names} ended", why)

    def _over(self, why: str) -> None:
        self._process = None
        self._socket.close()
        for child in self._asked:
            child.cannot_start(self._ended(why))
        for child in self._running.values():
            child.close()  # and so ends it
            child.has_ended(UNKNOWN_EXIT_CODE)
        self._asked.clear()
        self._running.clear()


def _opened(log: Path | int | None) -> IO[bytes]:
    if isinstance(log, int):
        return os.fdopen(os.dup(log), "ab")
    return open(os.devnull, "ab", buffering=0) if log is None else appending(log)


async def ready_line(child: Child, name: str, log: Path | None) -> str:
    """The line that the child `name` prints when it is ready; PeerError with the end of its log if there is none."""
    try:
        line = await within(READY_TIMEOUT_S, _line(child.stdout))
    except TimeoutError:
        await stop(child)
        why = f"was not ready after {READY_TIMEOUT_S:.0f} s"
    else:
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        with contextlib.suppress(TimeoutError):  # its own exit code says more than the code of our signal
            await within(STOP_GRACE_S, child.wait())
        why = f"did not start (exit code {await stop(child)})"
    raise PeerError(f"{name} {why}", f"its log ends: {tail(log)}")


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ConnectionError:  # the child ended before it read what it was told
        return b""


async def stop(child: Child, grace_s: float = STOP_GRACE_S) -> int:
    """Ends a child: SIGTERM, then after `grace_s` seconds SIGKILL. Returns its exit code."""
    child.send(signal.SIGTERM)
    try:
        await within(grace_s, child.wait())
    except BaseException as error:  # the child takes too long, or this wait was cancelled
        child.send(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its session, with what it started
        await _killed(child)
        if not isinstance(error, TimeoutError):
            raise
    finally:
        child.close()
    return await child.wait()


async def _killed(child: Child) -> None:
    """Waits until the end of a killed child is told. Its template may hang, and never tell it."""
    try:
        await within(STOP_GRACE_S, child.wait())
    except TimeoutError:
        logger.warning("process %d was killed, and its template does not tell that it has ended", child.pid)
        child.has_ended(UNKNOWN_EXIT_CODE)


def tail(log: Path | None, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, joined to one line."""
    if log is None or not log.exists():
        return "(no log)"
    return _end_of(log.read_text(errors="replace"), lines) or "(empty)"


def _end_of(text: str, lines: int = TAIL_LINES) -> str:
    return " | ".join(text.splitlines()[-lines:])
