"""Place `srun` at work: each worker is a step of the allocation in which the top server runs."""

import asyncio
import contextlib
import logging
import math
import os
import shlex
from collections.abc import Collection, Sequence

from fedgsp.errors import not_started
from fedgsp.files import appending
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, STOP_GRACE_S
from fedgsp.within import within
from top_server.placing.base import About, Ended, Placing, Worker
from top_server.placing.slurm.options import StepOptions, resource_flags, words
from top_server.placing.slurm.script import lay_out, started

logger = logging.getLogger(__name__)

#: Time for a step to end after its worker was asked to end, in seconds: Slurm's own messages take some more.
STOP_S = STOP_GRACE_S + 15.0


class Steps(Placing):
    """Place `srun`. A worker hears through its standard input, which srun hands on, when this process has ended."""

    options: StepOptions

    def __init__(self, options: StepOptions, about: About) -> None:
        super().__init__(options, about)
        self._steps: dict[str, asyncio.subprocess.Process] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}

    async def start(self, workers: Sequence[Worker]) -> None:
        """Asks for a step for each worker; some may have to wait for room in the allocation."""
        for worker in workers:
            lay_out(worker, self.about.folder / worker.name)
            self._steps[worker.name] = await self._step(worker)
            self._lives[worker.name] = asyncio.create_task(self._live(worker.name), name=f"step of {worker.name}")

    async def _step(self, worker: Worker) -> asyncio.subprocess.Process:
        resources = worker.resources
        command = [
            *("srun", "--ntasks=1", "--nodes=1", "--exact", "--unbuffered", "--export=ALL"),
            f"--job-name={worker.name}",
            f"--immediate={math.ceil(self.options.start_timeout)}",  # else it would wait for room for ever
            *resource_flags(resources),
            *(() if resources.memory else ("--mem=0",)),  # else the first step would get all memory of the job
            *words(self.options.srun, "srun"),
            *("/bin/sh", "-c", "umask 077\n" + started(shlex.quote(str(self.about.folder / worker.name)))),
        ]
        try:
            with appending(worker.log) as log:
                return await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, LIFELINE_VARIABLE: "stdin"},
                    start_new_session=True,  # Ctrl-C reaches this process only
                )
        except OSError as error:
            raise not_started("srun", error, "see if Slurm is installed") from None

    async def _live(self, name: str) -> None:
        self.about.tell(Ended(name, await self._steps[name].wait()))

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Ends steps: their workers are told by the end of their standard input, and srun after a while."""
        stopped = [name for name in ([*self._steps] if names is None else names) if name in self._steps]
        for name in stopped:
            self._lives.pop(name).cancel()
            stdin = self._steps[name].stdin
            assert stdin is not None
            stdin.close()
        await asyncio.gather(*(self._end(name, self._steps.pop(name)) for name in stopped))

    async def _end(self, name: str, step: asyncio.subprocess.Process) -> None:
        for end in (step.terminate, step.kill):
            try:
                await within(STOP_S, step.wait())
            except TimeoutError:
                logger.warning("the step of %s did not end within %.0f s", name, STOP_S)
                with contextlib.suppress(ProcessLookupError):
                    end()
        await step.wait()
