"""Workers on this machine: forked from a template, so that they start quickly and share memory."""

import asyncio
import contextlib
import shutil
from collections.abc import Collection, Sequence
from typing import Any

from fedgsp.errors import UserError
from fedgsp.processes.children import Child, Template, stop
from fedgsp.settings.managers import KEYS
from top_server.placing.base import About, Ended, Placing, Worker

HOST = "127.0.0.1"
#: A task may number texts in the order of a set, which Python draws anew for each process. With this, a run can be
#: repeated, and a resumed one has the labels that it began with. Processes that this place does not start lack it.
ENVIRONMENT = {"PYTHONHASHSEED": "0"}


class Local(Placing):
    """Place `local`. Workers end with this process, even if it is killed."""

    def __init__(self, options: Any, about: About) -> None:
        super().__init__(options, about)
        self._undo = contextlib.AsyncExitStack()
        self._template: Template | None = None
        self._children: dict[str, Child] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[str, Worker] = {}

    async def start(self, workers: Sequence[Worker]) -> None:
        """Starts the processes; those of one `Placing` have the imports of the first worker."""
        if self._template is None and workers:
            made = Template(workers[0].imports, ENVIRONMENT)
            self._template = await self._undo.enter_async_context(contextlib.aclosing(made))
        for worker in workers:
            self._workers[worker.name] = worker
            name = f"watch {worker.name}"
            self._lives[worker.name] = asyncio.create_task(self._live(worker), name=name)

    async def _live(self, worker: Worker) -> None:
        assert self._template is not None
        folder = self.about.folder / worker.name
        try:
            worker.write(folder)
            child = await self._template.spawn(worker.arguments(HOST, folder), worker.log, says_ready=False)
        except UserError as error:
            self.about.tell(Ended(worker.name, None, str(error)))
            return
        self._children[worker.name] = child
        code = await child.wait()
        self.about.tell(Ended(worker.name, code))

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Ends the processes in order; without names, the template too."""
        names = [*self._lives] if names is None else [name for name in names if name in self._lives]
        lives = [self._lives.pop(name) for name in names]
        for each in lives:
            each.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        await asyncio.gather(*(self._end(name) for name in names if name in self._children))
        if not self._lives:
            self._template = None
            await self._undo.aclose()

    async def _end(self, name: str) -> None:
        """Ends a worker. One that has to be killed leaves the keys of its managers behind, which are removed here."""
        code, state = await stop(self._children.pop(name)), self._workers.pop(name).settings.state_dir
        if code < 0 and state is not None:
            await asyncio.to_thread(shutil.rmtree, state / KEYS, ignore_errors=True)
