"""The job script of workers, and the flags with which it is submitted."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedgsp.files import private, write_secret
from fedgsp.processes import run_module
from fedgsp.settings.files import dump
from top_server.placing.base import COMMAND, Worker
from top_server.placing.slurm.options import SlurmOptions, resource_flags
from top_server.placing.workers import NAME, number_of

#: The file with the settings of a worker, in its folder.
SETTINGS = "node.toml"


def python(module: str, *arguments: str) -> str:
    """The command that runs a module of FedGSP as this process was run, for a shell: see `lifecycle.python_module`."""
    return shlex.join([sys.executable, "-P", run_module.__file__, module, *arguments])


def lay_out(worker: Worker, folder: Path) -> None:
    """Puts settings and secrets of a worker into its folder. Its machine adds where the worker is dialled."""
    private(folder)
    worker.write(folder)
    settings = replace(worker.on("localhost", folder), peer_listen=None, advertise=None)
    write_secret(folder / SETTINGS, dump(settings).encode(), lasting=False)


def started(folder: str) -> str:
    """The line of a shell that becomes the worker whose folder, as a shell reads it, is given."""
    return f"""exec {python(*COMMAND)} \\
    --config {folder}/{SETTINGS} --peer-listen 0.0.0.0:0 --advertise "$(uname -n):0\""""


def job_name(run: str) -> str:
    """The name of the jobs of a run's workers. Ids of runs are random, so no other job of the user has it."""
    return f"fedgsp-{run}-workers"


def worker_script(folder: Path, run: str) -> str:
    """The script of a job array: each task is one worker, whose folder in `folder` has its settings and its secrets.

    The shell becomes the worker: it gets Slurm's signals itself, and its exit code is that of the task.
    """
    here = f"{shlex.quote(str(folder))}/{NAME.format(number='')}$SLURM_ARRAY_TASK_ID"
    return f"""#!/bin/sh
# A worker of run {run}. Its settings and its key are files that only this user can read.
umask 077
{started(here)}
"""


def worker_flags(options: SlurmOptions, workers: Sequence[Worker], run: str) -> list[str]:
    """The flags of sbatch for the array of these workers, which are alike but for their numbers."""
    first = workers[0]
    log = first.log.with_name(first.log.name.replace(first.name, NAME.format(number="%a")))
    return [
        f"--job-name={job_name(run)}",
        f"--array={','.join(str(number_of(worker.name)) for worker in workers)}",
        f"--output={_escaped(log.parent)}/{log.name}",
        "--open-mode=append",
        "--requeue",
        f"--chdir={Path.cwd()}",
        *resource_flags(first.resources),
        *options.flags,
    ]


def _escaped(path: Path) -> str:
    """A path as sbatch reads it: a percent sign begins a pattern there."""
    return str(path).replace("%", "%%")
