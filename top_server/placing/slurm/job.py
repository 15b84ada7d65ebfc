"""The job script in which a top server itself runs. Pure."""

import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgsp.processes.lifecycle import SIGNAL_EXIT_CODES
from top_server.placing.slurm.script import python

#: The time that a run gets to stop, in seconds.
DEFAULT_NOTICE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that plays a run to its end, in as many allocations as that takes."""

    #: The settings of the run.
    config: Path
    run_dir: Path
    #: The working directory of the run.
    directory: Path
    name: str = "fedgsp"
    #: Flags of sbatch, such as --partition=long.
    flags: Sequence[str] = ()
    #: Seconds before the end of the allocation at which the run is stopped.
    notice_s: int = DEFAULT_NOTICE_S


def script(job: Job) -> str:
    """The script for sbatch.

    The run is stopped `notice_s` seconds before the allocation ends. It can then be resumed, and the job goes back
    into the queue. After a preemption or the loss of its machine, Slurm puts the job back by itself.
    """
    run = shlex.quote(str(job.run_dir))
    lines = [
        f"--job-name={job.name}",
        f"--output={str(job.run_dir).replace('%', '%%')}.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{job.notice_s}",
        f"--chdir={job.directory}",
        *job.flags,
    ]
    told = "\n".join(f"#SBATCH {_word(line)}" for line in lines)
    stopped = SIGNAL_EXIT_CODES[signal.SIGTERM]
    return f"""#!/bin/sh
{told}
# Plays the run in {job.run_dir}, or what is left of it.
umask 077
if ls -d {run}/state/round-* >/dev/null 2>&1; then
    set -- --resume {run}
else
    set -- --config {shlex.quote(str(job.config))} --run-dir {run}
fi
{python("top_server")} "$@" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null' TERM
wait "$server"
code=$?
while kill -0 "$server" 2>/dev/null; do  # the signal has ended the wait, and not the run
    wait "$server"
    code=$?
done
# Stopped, but not cancelled: the allocation is about to end.
if [ "$code" -eq {stopped} ] && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _word(text: str) -> str:
    """A flag as sbatch reads it in a script: a value with blanks needs quotation marks."""
    name, equals, value = text.partition("=")
    return f'{name}{equals}"{value}"' if " " in value else text
