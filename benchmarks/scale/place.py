"""Place `machines`: workers in the namespaces of `benchmarks.scale.network`, dealt in turn."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scale.network import address, namespace
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, STOP_GRACE_S, python_module
from fedgsp.settings.fields import setting
from fedgsp.within import within
from top_server.placing.base import About, Ended, Place, Placing, RemoteOptions, Worker
from top_server.placing.workers import number_of


@dataclass(frozen=True, slots=True)
class Options(RemoteOptions):
    """Options of place `machines`."""

    tag: int = setting(0, "the network", least=0)
    machines: int = setting(1, "number of machines", least=1)


class Machines(Placing):
    """Starts each worker on its machine."""

    def __init__(self, options: Any, about: About) -> None:
        super().__init__(options, about)
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._lives: list[asyncio.Task[None]] = []

    async def start(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            machine = machine_of(worker.name, self.options.machines)
            folder = self.about.folder / worker.name
            worker.write(folder)
            module, *arguments = worker.arguments(address(machine), folder)
            with worker.log.open("ab") as log:
                child = self._children[worker.name] = await asyncio.create_subprocess_exec(
                    *("ip", "netns", "exec", namespace(machine, self.options.tag)),
                    *python_module(module),
                    *arguments,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, LIFELINE_VARIABLE: "stdin"},
                    start_new_session=True,
                )
            self._lives.append(asyncio.create_task(self._watch(worker.name, child)))

    async def _watch(self, name: str, child: asyncio.subprocess.Process) -> None:
        self.about.tell(Ended(name, await child.wait()))

    async def stop(self, names: Collection[str] | None = None) -> None:
        for life in self._lives:
            life.cancel()
        for child in self._children.values():
            if child.returncode is None:
                child.terminate()
        for child in self._children.values():
            try:
                await within(STOP_GRACE_S, child.wait())
            except TimeoutError:
                child.kill()
                await child.wait()


def machine_of(worker: str, machines: int) -> int:
    """The machine of a worker, from 1."""
    return 1 + number_of(worker) % machines


PLACE = Place(help="in network namespaces", code=Machines, options=Options, remote=True)
