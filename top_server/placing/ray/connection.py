"""The driver, seen from the top server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgsp.errors import ConfigError, PeerError, not_started, not_written
from fedgsp.files import appending
from fedgsp.processes.children import tail
from fedgsp.processes.lifecycle import python_module
from fedgsp.within import within
from top_server.placing.ray.lines import MOST_BYTES, Line, to_bytes

DRIVER = "top_server.placing.ray.driver"
#: How long Ray may take to connect, or to make a cluster on this machine, or to copy the working directory.
CONNECT_TIMEOUT_S = 120.0
#: How long the driver may take to end.
_END_S = 30.0


class Connection:
    """A driver that runs, with the lines that it writes for each worker."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._log = log
        self._stdin, self._stdout = process.stdin, process.stdout
        self._of_worker: dict[str, asyncio.Queue[Line]] = {}
        self._listening: asyncio.Task[None] | None = None
        #: Why the driver has ended; empty while it runs.
        self._over = ""

    def send(self, **line: Any) -> None:
        """Tells the driver to do something."""
        with suppress(ConnectionError):  # what is left of it tells why
            self._stdin.write(to_bytes(line))

    async def of(self, worker: str) -> Line:
        """The next line about a worker; raises PeerError if the driver has ended."""
        lines = self._of_worker.setdefault(worker, asyncio.Queue())
        if self._over and lines.empty():
            raise PeerError(self._over)
        if (line := await lines.get())["tell"] == "over":
            raise PeerError(self._over)
        return line

    async def begin(self, first: Mapping[str, Any]) -> None:
        """Connects to the cluster; raises ConfigError if Ray refuses that, PeerError if it takes too long."""
        self.send(**first)
        try:
            line = await within(CONNECT_TIMEOUT_S, self._stdout.readline())
        except TimeoutError:
            raise PeerError(
                f"Ray did not connect to {first['address']} within {CONNECT_TIMEOUT_S:.0f} s",
                f"is a cluster there? The log of Ray's driver, {self._log}, ends: {tail(self._log)}",
            ) from None
        if not line:
            raise PeerError(await self._ended())
        answer = json.loads(line)
        if answer["tell"] == "refused":
            raise ConfigError(answer["what"], answer["remedy"])
        self._listening = asyncio.create_task(self._listen(), name="listen to the driver of Ray")

    async def end(self) -> None:
        """Ends the driver, and so all actors that it has."""
        self._stdin.close()
        try:
            with suppress(TimeoutError):
                await within(_END_S, self._process.wait())
        finally:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            if self._listening is not None:
                await self._listening

    async def _listen(self) -> None:
        while text := await self._stdout.readline():
            line = json.loads(text)
            self._of_worker.setdefault(line["worker"], asyncio.Queue()).put_nowait(line)
        self._over = await self._ended()
        for lines in self._of_worker.values():
            lines.put_nowait({"tell": "over"})

    async def _ended(self) -> str:
        code = await self._process.wait()
        return f"Ray's driver ended with exit code {code}; its log, {self._log}, ends: {tail(self._log)}"


async def opened(first: Mapping[str, Any], log: Path) -> Connection:
    """A driver that is connected to a cluster, and writes to the end of `log`; raises UserError."""
    try:
        errors = appending(log)
    except OSError as error:
        raise not_written(log, error) from error
    with errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *python_module(DRIVER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MOST_BYTES,
                start_new_session=True,  # Ctrl-C then reaches the top server only, which stops its workers in order
            )
        except OSError as error:
            raise not_started("the driver of Ray", error) from None
    connection = Connection(process, log)
    try:
        await connection.begin(first)
    except BaseException:
        await connection.end()
        raise
    return connection
