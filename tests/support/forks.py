"""Programs forked from a process that has done their imports: they start in milliseconds, where torch takes seconds.

Each worker of pytest has one such process, a template of FedGSP. It serves tests of different event loops, and so it
has a thread, where `fedgsp.processes.children` has a task.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fedgsp.processes.lifecycle import python_module
from tests.support.in_folder import program

IMPORTS = ("top_server.cli", "top_server.server", "fedgsp_node.cli", "fedgsp_node.server")
#: The environment before any test changed it.
STARTED = dict(os.environ)


class Forked:
    """A process that was forked; the same methods as those of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, ended: Future[int], stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    def send_signal(self, number: int) -> None:
        """Signals it; raises ProcessLookupError if it has ended."""
        if self._ended.done():
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """The same with SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """The same with SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """The template of this process, and those that it forked."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*python_module("fedgsp.processes.template"), *IMPORTS],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # setproctitle would write the titles of children over their environment without SPT_NOENV.
                env={**STARTED, "SPT_NOENV": "1"},
                start_new_session=True,
            )
        self._asking = threading.Lock()
        #: Children that are asked for, in this order, and those that run.
        self._asked: list[Future[tuple[int, Future[int]]]] = []
        self._running: dict[int, Future[int]] = {}
        threading.Thread(target=self._listen, name="listen to forks", daemon=True).start()

    async def start(self, command: Sequence[str], folder: Path, errors: int, limit: int) -> Forked:
        """Starts `python -m COMMAND` in a folder, with the environment of this process, without standard input.

        Its standard error goes to the file descriptor `errors`. Lines of its standard output have at most `limit`
        bytes.
        """
        read, write = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        told: Future[tuple[int, Future[int]]] = Future()
        try:
            with self._asking:
                self._asked.append(told)
                message = json.dumps(program(command, folder, os.environ)).encode() + b"\n"
                sent = socket.send_fds(self._socket, [message], [nothing, write, errors])
                self._socket.sendall(message[sent:])
        finally:
            os.close(write)
            os.close(nothing)
        stdout = asyncio.StreamReader(limit=limit)
        protocol = functools.partial(asyncio.StreamReaderProtocol, stdout)
        await asyncio.get_running_loop().connect_read_pipe(protocol, os.fdopen(read, "rb"))
        return Forked(*await asyncio.wrap_future(told), stdout)

    def _listen(self) -> None:
        with self._socket.makefile() as lines:
            for pid, code in map(json.loads, lines):
                if code is None:
                    ended: Future[int] = Future()
                    self._running[pid] = ended
                    self._asked.pop(0).set_result((pid, ended))
                else:
                    self._running.pop(pid).set_result(code)
        lost: list[Future[Any]] = [*self._asked, *self._running.values()]
        for waiting in lost:  # or their tests would wait for ever
            waiting.set_exception(RuntimeError(f"the template of tests ended, exit code {self.process.wait()}"))


@functools.cache
def forks() -> Forks:
    """The template of this process; it starts at the first call, and ends with this process."""
    return Forks()


def pid() -> int | None:
    """The process of the template; None while there is none."""
    return forks().process.pid if forks.cache_info().currsize else None
