"""Place `slurm` at work: submits the workers as a job array, follows the queue, and cancels what is left."""

import asyncio
import logging
from collections.abc import Collection, Sequence

from fedgsp.errors import PeerError, UserError
from fedgsp.words import counted
from top_server.placing.base import About, Ended, Placing, Worker
from top_server.placing.slurm import commands, queue
from top_server.placing.slurm.options import SlurmOptions
from top_server.placing.slurm.script import job_name, lay_out, worker_flags, worker_script
from top_server.placing.workers import name_of, number_of

logger = logging.getLogger(__name__)

#: Time for tasks to end when they are cancelled, in seconds: Slurm's KillWait, 30 s by default, and some more.
STOP_S = 120.0
#: Time for workers to end by themselves, which they do after a run that is finished, before they are cancelled.
LEAVE_S = 3.0
#: The first and the longest pause between looks at the queue while tasks are to end, in seconds.
FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 2.0


class Slurm(Placing):
    """Place `slurm`.

    Nothing is kept beside the run directory: a former job of the same run is found by its name.
    """

    def __init__(self, options: SlurmOptions, about: About) -> None:
        super().__init__(options, about)
        self._options = options
        #: Job -> its tasks as they were seen last, by number.
        self._jobs: dict[str, dict[int, queue.Task]] = {}
        #: Job -> until when its tasks must have begun; none when they have.
        self._deadlines: dict[str, float] = {}
        self._following: asyncio.Task[None] | None = None
        self._stopped: set[int] = set()
        self._told: dict[str, list[int]] = {}

    async def start(self, workers: Sequence[Worker]) -> None:
        """Submits a job array with these workers; raises UserError if Slurm refuses it or does not answer."""
        if not self._jobs:
            await self._end_former()
        if not workers:
            return
        for worker in workers:
            lay_out(worker, self.about.folder / worker.name)
        script = worker_script(self.about.folder, self.about.run)
        flags = worker_flags(self._options, workers, self.about.run)
        job = await commands.submit(script, flags)
        self._jobs[job] = {number_of(worker.name): queue.Task("PENDING") for worker in workers}
        self._deadlines[job] = asyncio.get_running_loop().time() + self._options.start_timeout
        logger.info("Slurm job %s has %s", job, counted(len(workers), "worker"))
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="follow Slurm's queue")

    async def _end_former(self) -> None:
        """Ends the workers of a start of this run that was killed before it could; raises PeerError if they stay."""
        name = job_name(self.about.run)
        if not (jobs := await commands.jobs_named(name)):
            return
        logger.warning("the workers of an earlier start of this run are ended first: Slurm jobs %s", ", ".join(jobs))
        await commands.cancel(jobs)
        wait_s, deadline = FIRST_LOOK_S, asyncio.get_running_loop().time() + STOP_S
        while jobs := await commands.jobs_named(name):
            if asyncio.get_running_loop().time() > deadline:
                raise PeerError(
                    f"Slurm jobs {', '.join(jobs)} of this run did not end within {STOP_S:.0f} s after scancel",
                    "their workers would write into the same state: see `squeue`, and try again when they are gone",
                )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_LOOK_S)

    async def _follow(self) -> None:
        """Looks at the queue again and again. A look that fails changes nothing, and is told once."""
        failed = ""
        while True:
            await asyncio.sleep(self._options.poll)
            try:
                await self._look()
                failed = ""
            except UserError as error:
                if failed != str(error):
                    logger.warning("the queue of Slurm cannot be read: %s", error)
                failed = str(error)

    async def _look(self) -> None:
        for job, before in list(self._jobs.items()):
            now = self._parsed(await commands.look(job, queue.FIELDS))
            self._jobs[job] = queue.merged(before, now, before)
            for change in queue.changes(before, self._jobs[job]):
                self._tell(change)
            self._check_deadline(job)
        self._tell_waiting()

    def _parsed(self, text: str) -> dict[int, queue.Task]:
        try:
            return queue.parse(text)
        except ValueError as error:
            raise PeerError(
                f"squeue prints what cannot be read: {error}", "see if this Slurm is of 20.11 or later"
            ) from None

    def _tell(self, change: queue.Change) -> None:
        if change.number not in self._stopped:
            self.about.tell(Ended(name_of(change.number), change.code, change.reason, change.returns))

    def _check_deadline(self, job: str) -> None:
        """Gives up on tasks that have never begun in time."""
        tasks = self._jobs[job]
        late = {number: task for number, task in tasks.items() if task.is_waiting and not task.restarts}
        if not late:
            self._deadlines.pop(job, None)
        if job not in self._deadlines or asyncio.get_running_loop().time() < self._deadlines[job]:
            return
        del self._deadlines[job]
        for number, task in late.items():
            waited = f"it was in Slurm's queue for {self._options.start_timeout:.0f} s: {task.reason}"
            self._tell(queue.Change(number, None, f"{waited}; place option start_timeout says how long"))

    def _tell_waiting(self) -> None:
        """Logs why tasks wait, when that has changed."""
        found: dict[str, list[int]] = {}
        for tasks in self._jobs.values():
            for reason, numbers in queue.waiting(tasks).items():
                found.setdefault(reason, []).extend(numbers)
        if found != self._told:
            for reason, numbers in found.items():
                logger.info("%s in Slurm's queue: %s", counted(len(numbers), "worker"), reason)
        self._told = found

    async def stop(self, names: Collection[str] | None = None) -> None:
        """Ends tasks and waits until they have ended, at most STOP_S seconds. Slurm sends SIGTERM, then SIGKILL."""
        known = {number for tasks in self._jobs.values() for number in tasks}
        numbers = known if names is None else known.intersection(map(number_of, names))
        self._stopped |= numbers
        if names is None and self._following is not None:
            self._following.cancel()
            (ended,) = await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
            if isinstance(ended, Exception):
                logger.error("the queue of Slurm was not followed any more", exc_info=ended)
        try:
            if names is None:
                await self._wait_for(numbers, LEAVE_S)
                # Also a job whose id is not known, because this process was stopped while it submitted the job.
                await commands.cancel(await commands.jobs_named(job_name(self.about.run)))
            await commands.cancel(self._left(numbers))
            if left := await self._wait_for(numbers, STOP_S):
                logger.warning("tasks %s did not end within %.0f s after scancel", ", ".join(left), STOP_S)
        except UserError as error:
            logger.warning("workers may still be there: %s; see `squeue --name=%s`", error, job_name(self.about.run))

    async def _wait_for(self, numbers: Collection[int], timeout_s: float) -> list[str]:
        """Waits for the ends of these workers; returns the tasks that have not ended after the timeout."""
        clock = asyncio.get_running_loop().time
        wait_s, deadline = FIRST_LOOK_S, clock() + timeout_s
        while self._left(numbers) and clock() < deadline:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_LOOK_S)
            await self._look()
        return self._left(numbers)

    def _left(self, numbers: Collection[int]) -> list[str]:
        """The tasks of these workers that have not ended, as scancel writes them."""
        return [
            f"{job}_{number}"
            for job, tasks in self._jobs.items()
            for number, task in tasks.items()
            if number in numbers and not task.is_over and task != queue.FORGOTTEN
        ]
