"""The process that is a driver of Ray: it does what the top server says, and tells what happens. See `lines.py`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from fedgsp.connections.addresses import split_address
from fedgsp.within import within
from top_server.placing.ray.lines import MOST_BYTES, Line, to_bytes
from top_server.placing.ray.machine import Machine
from top_server.placing.ray.options import AUTO, CLIENT, LOCAL
from top_server.placing.ray.words import missing, refusal, why_lost

NAMESPACE = "fedgsp"
#: How often a worker that has no machine is told to wait.
_WAITS_S = 5.0
#: How often an actor is asked again that cannot be reached, and how long until it counts as lost.
_AGAIN_S, _UNREACHABLE_S = 1.0, 120.0
#: How long an actor may take to remove its folder.
_CLEAR_S = 10.0
#: How long the first connection to an address may take.
_REACH_S = 10.0


def main() -> int:
    """Serves the top server until standard input ends."""
    to_top_server = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Ray writes to standard output
    first = json.loads(sys.stdin.buffer.readline())  # the other lines come after the answer to this one
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        _reach(first["address"])
        ray.init(**_settings(first))
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        what, remedy = refusal(str(error), first["address"])
        _write(to_top_server, {"tell": "refused", "what": what, "remedy": remedy})
        return 0
    _write(to_top_server, {"tell": "ready"})
    asyncio.run(Driver(ray, first["run"], to_top_server).serve())
    ray.shutdown()
    return 0


def _write(out: BinaryIO, line: Line) -> None:
    out.write(to_bytes(line))
    out.flush()


def _reach(address: str) -> None:
    """Raises OSError if nothing listens at an address. Ray would try it for minutes."""
    if address not in (AUTO, LOCAL):
        host, port = split_address(address.removeprefix(CLIENT))
        socket.create_connection((host.strip("[]"), port), _REACH_S).close()


def _settings(first: Line) -> dict[str, Any]:
    """The arguments of `ray.init`."""
    found: dict[str, Any] = {"address": first["address"], "namespace": NAMESPACE, "log_to_driver": False}
    if first["address"] == LOCAL:
        found["include_dashboard"] = False
    if first["working_dir"] is not None:
        found["runtime_env"] = {"working_dir": first["working_dir"]}
    return found


class Driver:
    """The actors of a run."""

    def __init__(self, ray: Any, run: str, out: BinaryIO) -> None:
        self._ray = ray
        self._run = run
        self._out = out
        self._lives: dict[str, asyncio.Task[None]] = {}
        #: Worker -> what it is to run, done when the top server says so.
        self._begins: dict[str, asyncio.Future[Line]] = {}
        #: Worker -> its actor, once it runs.
        self._running: dict[str, Any] = {}

    async def serve(self) -> None:
        """Does what the lines say, until they end."""
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader(MOST_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            self._do(json.loads(line))
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)

    def _do(self, line: Line) -> None:
        name = line["worker"]
        if line["do"] == "place":
            self._begins[name] = asyncio.get_running_loop().create_future()
            self._lives[name] = asyncio.create_task(self._live(name, line), name=f"place {name}")
        elif line["do"] == "begin":
            self._begins[name].set_result(line)
        elif name in self._running:
            self._running[name].stop.remote()
        else:
            self._lives[name].cancel()

    def _tell(self, what: str, worker: str, **more: Any) -> None:
        _write(self._out, {"tell": what, "worker": worker, **more})

    async def _live(self, name: str, line: Line) -> None:
        """The life of an actor, from the request for a machine to its end."""
        actor, placed = None, False
        try:
            actor = await self._actor(name, line)
            where = await self._placed(name, actor, line)
            placed = True
            self._tell("placed", name, **where)
            begin = await self._begins[name]
            await self._asked(actor.begin, begin["arguments"], begin["secrets"], begin["folder"])
            self._running[name] = actor
            offset, code = 0, None
            while code is None:
                piece, code = await self._asked(actor.more, offset)
                offset += len(piece)
                if piece:
                    self._tell("output", name, data=base64.b64encode(piece).decode())
            await self._clear(actor)
            self._tell("ended", name, code=code)
        except asyncio.CancelledError:
            if actor is not None and placed:
                await self._clear(actor)
            self._tell("ended", name, code=None)
        except Exception as error:  # the top server waits for a word, and Ray has many kinds of errors
            self._tell("lost", name, reason=why_lost(str(error)))
        finally:
            self._running.pop(name, None)
            if actor is not None:
                self._ray.kill(actor)

    async def _actor(self, name: str, line: Line) -> Any:
        """A new actor. Its name keeps a second one of the same worker out, which a killed top server may have left."""
        own = f"{self._run}/{name}"
        with suppress(ValueError):
            left = self._ray.get_actor(own, NAMESPACE)
            await self._clear(left)
            self._ray.kill(left)
        asked = {"num_cpus": line["cpus"], "num_gpus": line["gpus"], "memory": line["memory"] << 20 or None}
        begin = asyncio.get_running_loop().time()
        while True:
            try:
                return self._ray.remote(Machine).options(name=own, max_restarts=0, **asked).remote()
            except ValueError:  # the name is taken until the old actor has died
                if asyncio.get_running_loop().time() - begin > _UNREACHABLE_S:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _placed(self, name: str, actor: Any, line: Line) -> Line:
        """Where the actor is, once a machine has room for it."""
        asked = {"CPU": line["cpus"], "GPU": line["gpus"], "memory": line["memory"] << 20}
        asked = {resource: amount for resource, amount in asked.items() if amount}
        where = asyncio.ensure_future(self._asked(actor.where, line["marker"], line["token"]))
        try:
            while not (await asyncio.wait([where], timeout=_WAITS_S))[0]:
                machines = [found["Resources"] for found in self._ray.nodes() if found["Alive"]]
                self._tell("waits", name, missing=missing(asked, machines))
            found: Line = await where
        finally:
            where.cancel()
        return found

    async def _asked(self, method: Any, *arguments: Any) -> Any:
        """The answer of an actor, which is asked again while it cannot be reached."""
        gone = self._ray.exceptions.ActorUnavailableError
        loop = asyncio.get_running_loop()
        begin: float | None = None
        while True:
            try:
                return await method.remote(*arguments)
            except gone:
                begin = begin or loop.time()
                if loop.time() - begin > _UNREACHABLE_S:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _clear(self, actor: Any) -> None:
        with suppress(self._ray.exceptions.RayError, TimeoutError):
            await within(_CLEAR_S, actor.clear.remote())


if __name__ == "__main__":
    sys.exit(main())
