"""The actor that runs a worker on a machine of the cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgsp.files import appending, read_text, write_secret
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, STOP_GRACE_S, python_module
from fedgsp.within import within

#: How long `more` waits for the end of the worker, before it answers with the output so far.
_PATIENCE_S = 2.0
#: Most bytes of output in one answer.
_PIECE = 1 << 16


class Machine:
    """A place for one worker, which is a child process and ends with this actor.

    Its folder, for this user alone, has the secrets and the output of the worker. It is removed with the actor; if the
    actor is killed, it stays in the machine's folder for temporary files.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fedgsp-ray-"))
        self._output = self._folder / "output"
        self._process: asyncio.subprocess.Process | None = None
        self._beginning = asyncio.Lock()

    async def where(self, marker: str, token: str) -> dict[str, Any]:
        """Where others reach this machine, and its folder.

        `shared` says whether the file `marker` with the content `token` is here too: then the machine has the run
        directory of the top server.
        """
        from ray.util import get_node_ip_address

        ip = get_node_ip_address()
        try:
            shared = read_text(Path(marker)) == token
        except (OSError, ValueError):
            shared = False
        return {"host": f"[{ip}]" if ":" in ip else ip, "folder": str(self._folder), "shared": shared}

    async def begin(self, arguments: Sequence[str], secrets: Mapping[str, str], folder: str) -> None:
        """Starts the worker, in `folder` if that is here; does nothing if it has been started."""
        async with self._beginning:  # the driver asks again if it had no answer
            if self._process is None:
                self._process = await self._started(arguments, secrets, folder)

    async def _started(
        self, arguments: Sequence[str], secrets: Mapping[str, str], folder: str
    ) -> asyncio.subprocess.Process:
        here = folder if await asyncio.to_thread(os.path.isdir, folder) else None
        for name, content in secrets.items():
            write_secret(self._folder / name, content.encode(), lasting=False)
        with appending(self._output) as output:
            return await asyncio.create_subprocess_exec(
                *python_module(arguments[0]),
                *arguments[1:],
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=here,
                env={**os.environ, LIFELINE_VARIABLE: "stdin"},
                start_new_session=True,
            )

    async def more(self, offset: int) -> tuple[bytes, int | None]:
        """A piece of the output, from `offset` on; with the exit code, if the worker has ended and this is all."""
        assert self._process is not None
        with suppress(TimeoutError):
            await within(_PATIENCE_S, self._process.wait())
        ended = self._process.returncode
        with self._output.open("rb") as file:
            file.seek(offset)
            piece = file.read(_PIECE)
        return piece, None if len(piece) == _PIECE else ended

    async def stop(self) -> None:
        """Ends the worker, with SIGKILL if it does not end after SIGTERM."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await within(STOP_GRACE_S, process.wait())
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def clear(self) -> None:
        """Removes the folder."""
        await self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
