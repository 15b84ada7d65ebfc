"""A real Slurm cluster on this machine: one controller and two machines, each of which is a slurmd of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MACHINES = ("n1", "n2")
#: Processors that each machine says it has; only bookkeeping.
CPUS = 3
#: The partition of jobs that others may preempt, and that of those others.
LOW, HIGH = "low", "high"
DEADLINE_S = 60.0
NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")

CONFIG = """\
ClusterName=fedgsp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
OverTimeLimit=0
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
{machines}
PartitionName={low} Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName={high} Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


@dataclass(frozen=True)
class Cluster:
    folder: Path

    def run(self, *command: str, told: str = "") -> str:
        """What a command of Slurm prints; AssertionError if it fails."""
        ended = subprocess.run(
            command, input=told, capture_output=True, text=True, check=False, timeout=DEADLINE_S, env=self.environment
        )
        assert ended.returncode == 0, (command, ended.stderr)
        return ended.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def tasks(self, state: str = "RUNNING") -> list[tuple[str, str]]:
        """The tasks in a state: job with number, and machine."""
        out = self.run("squeue", "--noheader", "--array", f"--states={state}", f"--partition={LOW}", "--format=%i %N")
        return [(words[0], words[1] if len(words) > 1 else "") for line in out.splitlines() if (words := line.split())]

    def running(self) -> list[tuple[str, str]]:
        """The tasks that run, as soon as there is one."""
        end = time.monotonic() + DEADLINE_S
        while not (found := self.tasks()):
            assert time.monotonic() < end, self.run("squeue")
            time.sleep(0.1)
        return found

    def steps(self) -> list[str]:
        """The names of the steps of all jobs."""
        return self.run("squeue", "--steps", "--noheader", "--format=%j").split()

    def wait_until(self, done: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        """Waits until something holds."""
        end = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end, self.run("squeue")
            time.sleep(0.1)

    def wait_until_empty(self, timeout_s: float = DEADLINE_S) -> None:
        """Waits until the queue is empty."""
        self.wait_until(lambda: not self.run("squeue", "--noheader"), timeout_s)


@contextlib.contextmanager
def cluster(folder: Path, cpus: int = CPUS) -> Iterator[Cluster]:
    """A cluster while the block lasts; skips the test if Slurm is not installed."""
    if missing := [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}; make test-slurm installs it")
    (folder / "state").mkdir(parents=True)
    ports = _free_ports(1 + len(MACHINES))
    host = socket.gethostname()
    machines = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=4000"
        for name, port in zip(MACHINES, ports[1:], strict=True)
    )
    text = CONFIG.format(
        host=host, port=ports[0], user=getpass.getuser(), folder=folder, machines=machines, low=LOW, high=HIGH
    )
    (folder / "slurm.conf").write_text(text)
    made = Cluster(folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_daemon(made, "slurmctld", "-D"))
        for name in MACHINES:
            (folder / f"spool-{name}").mkdir()
            stack.enter_context(_daemon(made, "slurmd", "-D", "-N", name))
        end = time.monotonic() + DEADLINE_S
        while _idle(made) != len(MACHINES):
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.2)
        try:
            yield made
        finally:
            made.run("scancel", f"--user={getpass.getuser()}")
            made.wait_until_empty()


def _idle(made: Cluster) -> int:
    ended = subprocess.run(
        ["sinfo", "--noheader", "--Node", f"--partition={LOW}", "--states=idle", "--format=%N"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=made.environment,
    )
    return len(ended.stdout.split())


@contextlib.contextmanager
def _daemon(made: Cluster, *command: str) -> Iterator[None]:
    path = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin")
    assert path is not None
    log = made.folder / f"{'-'.join(command)}.out"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [path, *command[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=made.environment
        )
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
