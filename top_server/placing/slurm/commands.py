"""Slurm's commands, each with a deadline."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedgsp.errors import ConfigError, PeerError, not_started
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE
from fedgsp.visible import visible
from fedgsp.within import within

NEEDED = ("sbatch", "squeue", "scancel")
#: How long one command may take, in seconds: a busy controller answers slowly.
DEADLINE_S = 60.0
_MOST_SAID = 400
CONTROLLER = "see if Slurm's controller is up: scontrol ping"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    #: The end of what it said on stderr, in one line.
    said: str


def check_installed(place: str = "slurm", needed: Sequence[str] = NEEDED) -> None:
    """Raises ConfigError if a command is missing that a place needs."""
    for name in needed:
        if shutil.which(name) is None:
            raise ConfigError(
                f"place {place} needs the command {name}, which is not on this machine",
                "start the top server where jobs are submitted, or load the cluster's module for Slurm",
            )


def check_allocation() -> None:
    """Raises ConfigError if this process does not run in an allocation of Slurm."""
    check_installed("srun", ("srun",))
    if not os.environ.get("SLURM_JOB_ID"):
        raise ConfigError(
            "place srun starts workers as steps of a job of Slurm, and this process runs in none",
            "start the top server in a job (salloc, sbatch, top-server slurm), or give --place slurm",
        )


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's commands, and so for the job.

    Variables of an allocation around this process would change the job. The lifeline of this process is not for it.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in given.items()
        if name != LIFELINE_VARIABLE and (name in kept or not name.startswith("SLURM_"))
    }


async def ask(*command: str, told: str = "") -> Answer:
    """Runs a command with `told` as its standard input; raises PeerError if it cannot run, or takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(os.environ),
            start_new_session=True,  # Ctrl-C reaches this process only
        )
    except OSError as error:
        raise not_started(command[0], error, "see if Slurm is installed") from None
    try:
        out, said = await within(DEADLINE_S, process.communicate(told.encode()))
    except BaseException as error:
        process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise PeerError(f"{command[0]} did not answer within {DEADLINE_S:.0f} s", CONTROLLER) from None
        raise
    assert process.returncode is not None
    words = " | ".join(said.decode(errors="replace").splitlines())[-_MOST_SAID:]
    return Answer(process.returncode, out.decode(errors="replace"), visible(words))


async def submit(script: str, flags: Sequence[str]) -> str:
    """Submits a job and returns its id; raises ConfigError if Slurm refuses it."""
    answer = await ask("sbatch", "--parsable", *flags, told=script)
    job = answer.out.strip().partition(";")[0]  # ID;CLUSTER
    if answer.code or not job.isdecimal():
        raise ConfigError(
            f"Slurm refuses the job of the workers: {answer.said or f'exit code {answer.code}'}",
            "correct the options of --place-option; they became the flags " + " ".join(flags),
        )
    return job


async def jobs_named(name: str) -> list[str]:
    """The ids of this user's jobs of that name that are in the queue; raises PeerError."""
    answer = await ask("squeue", "--noheader", f"--user={os.getuid()}", f"--name={name}", "--format=%A")
    if answer.code:
        raise PeerError(f"squeue failed: {answer.said}", CONTROLLER)
    return sorted(set(answer.out.split()))


async def cancel(tasks: Sequence[str]) -> None:
    """Asks for the end of jobs, or of single tasks JOB_NUMBER; raises PeerError if Slurm does not answer."""
    if tasks:
        await ask("scancel", "--quiet", *tasks)


async def look(job: str, fields: str) -> str:
    """What squeue prints of all tasks of a job, those that have ended too; empty if Slurm does not know the job."""
    answer = await ask("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", f"--Format={fields}")
    if answer.code and "Invalid job id" not in answer.said:
        raise PeerError(f"squeue failed: {answer.said}", CONTROLLER)
    return "" if answer.code else answer.out
