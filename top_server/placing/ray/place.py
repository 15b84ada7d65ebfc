"""Workers in a Ray cluster: where they are placed, and what happens when they are lost."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fedgsp.errors import PeerError, not_written
from fedgsp.files import appending, private, write_all, write_secret
from fedgsp.within import within
from top_server.placing.base import About, Ended, Placing, Worker
from top_server.placing.ray.connection import Connection, opened
from top_server.placing.ray.lines import Line
from top_server.placing.ray.options import RayOptions
from top_server.placing.ray.words import lacks_package

logger = logging.getLogger(__name__)

#: How long a worker that was lost stays away: until then Ray has ended what is left of it.
RETURN_AFTER_S = 5.0
#: A worker that is lost so often, each time within so many seconds after its start, is not started again.
MOST_LOSSES, SOON_S = 5, 60.0
#: How long workers may take to end: more than the grace between SIGTERM and SIGKILL.
STOP_TIMEOUT_S = 30.0
_MARKER = "marker"


class Ray(Placing):
    """Place `ray`. Ray ends the actors of a driver that has ended, and workers end with their actors."""

    options: RayOptions

    def __init__(self, options: RayOptions, about: About) -> None:
        super().__init__(options, about)
        self._driver: Connection | None = None
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        #: Machines that have this file with the token have the run directory.
        self._marker = about.folder / _MARKER
        self._token = secrets.token_hex(16)
        self._told = ""

    async def start(self, workers: Sequence[Worker]) -> None:
        """Asks Ray for a machine for each worker, and returns: some may have to wait for one."""
        if self._driver is None and workers:
            private(self.about.folder)
            write_secret(self._marker, self._token.encode(), lasting=False)
            folder = self.options.working_dir
            first = {
                "address": self.options.address,
                "working_dir": folder and str(folder.absolute()),
                "run": self.about.run,
            }
            self._driver = await opened(first, workers[0].log.with_name("ray.log"))
        for worker in workers:
            self._stopping.discard(worker.name)
            self._lives[worker.name] = asyncio.create_task(self._live(worker), name=f"place {worker.name}")

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Ends workers; without names, all of them and the driver."""
        stopped = [name for name in ([*self._lives] if names is None else names) if name in self._lives]
        self._stopping.update(stopped)
        lives = [self._lives.pop(name) for name in stopped]
        if self._driver is not None:
            for name in stopped:
                self._driver.send(do="stop", worker=name)
        if lives:
            await asyncio.wait(lives, timeout=STOP_TIMEOUT_S)
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        if self._driver is not None and not self._lives:
            driver, self._driver = self._driver, None
            await driver.end()

    async def _live(self, worker: Worker) -> None:
        """The life of a worker, on one machine after the other."""
        losses, loop = 0, asyncio.get_running_loop()
        while True:
            try:
                began, ended = await self._once(worker)
            except PeerError as error:
                ended = Ended(worker.name, None, str(error))
            except OSError as error:
                assert self._driver is not None
                self._driver.send(do="stop", worker=worker.name)
                ended = Ended(worker.name, None, str(not_written(worker.log, error)))
            if worker.name in self._stopping:
                return
            if not ended.returns:
                self.about.tell(ended)
                return
            losses = losses + 1 if loop.time() - began < SOON_S else 1
            if losses == MOST_LOSSES:
                self.about.tell(replace(ended, reason=f"{ended.reason}, {losses} times in a row", returns=False))
                return
            self.about.tell(ended)
            await asyncio.sleep(RETURN_AFTER_S)

    async def _once(self, worker: Worker) -> tuple[float, Ended]:
        """The life of a worker on one machine: when it began there, and its end."""
        assert self._driver is not None
        driver, name, needs = self._driver, worker.name, worker.resources
        where = {"marker": str(self._marker), "token": self._token}
        driver.send(do="place", worker=name, cpus=needs.cpus, gpus=needs.gpus, memory=needs.memory, **where)
        missing = ["Ray has not answered"]
        try:
            line = await within(self.options.start_timeout, self._waited(driver, name, missing))
        except TimeoutError:
            driver.send(do="stop", worker=name)
            while (await driver.of(name))["tell"] not in ("ended", "lost"):
                pass
            waited = f"it had no machine for {self.options.start_timeout:g} s: {missing[-1]}"
            return 0.0, Ended(name, None, waited)
        began = asyncio.get_running_loop().time()
        if line["tell"] == "placed":
            folder = "" if self.options.working_dir else str(Path.cwd())
            driver.send(do="begin", worker=name, folder=folder, **_order(worker, line))
            line = await self._watched(driver, worker)
        if line["tell"] == "lost":
            lacks = lacks_package(line["reason"])
            return began, Ended(name, None, lacks or line["reason"], returns=not lacks)
        return began, Ended(name, line["code"])

    async def _waited(self, driver: Connection, name: str, missing: list[str]) -> Line:
        """The line that ends the search for a machine; notes what is missing until then, and logs it once."""
        while (line := await driver.of(name))["tell"] == "waits":
            missing.append(line["missing"])
            if line["missing"] != self._told:
                self._told = line["missing"]
                logger.warning("%s waits for a machine of the Ray cluster: %s", name, self._told)
        return line

    async def _watched(self, driver: Connection, worker: Worker) -> Line:
        """The line that ends a worker; writes its output until then."""
        with appending(worker.log) as log:
            while (line := await driver.of(worker.name))["tell"] == "output":
                write_all(log, base64.b64decode(line["data"]))
        return line


def _order(worker: Worker, where: Line) -> Line:
    """What a worker runs on its machine."""
    folder = Path(where["folder"])
    if not where["shared"]:  # the run directory is elsewhere, and there is no other place that stays
        worker = replace(worker, settings=replace(worker.settings, state_dir=folder / "state"))
    return {
        "arguments": worker.arguments(where["host"], folder),
        "secrets": {name: content.decode() for name, content in worker.secrets.items()},
    }
