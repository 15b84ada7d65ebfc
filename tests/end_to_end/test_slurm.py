"""A real Slurm cluster on this machine plays runs: same bits, requeues, preemptions, time limits, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.placed import CLIENTS, TASK, WORKERS, differing, model_of, planned, settings_of
from tests.support.processes import Process, program
from tests.support.slurm import HIGH, MACHINES, Cluster, cluster
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

pytestmark = [pytest.mark.slurm, pytest.mark.e2e, pytest.mark.timeout(900)]
DEADLINE_S = 240.0


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with cluster(tmp_path / "slurm") as made:
        monkeypatch.setenv("SLURM_CONF", made.environment["SLURM_CONF"])
        yield made


def run_of(folder: Path, *flags: str) -> contextlib.AbstractAsyncContextManager[Process]:
    """A top server with workers in the cluster."""
    placed = ["--place", "slurm", "--workers", str(WORKERS), "--clients", str(CLIENTS), "--place-option", "poll=0.5"]
    command = ["top_server", "--json", "--run-dir", str(folder / "run"), *placed, *flags]
    return program(command, folder / "top-server.log")


@pytest.mark.parametrize(
    ("managers", "scheme"),
    # Members of a parallel group get its start from a placed manager.
    [((), "fedgsp"), (("--place-managers",), "fedavg")],
    ids=["beside the top server", "placed"],
)
async def test_a_job_array_gives_the_bits_of_local_nodes(
    slurm: Cluster, tmp_path: Path, managers: tuple[str, ...], scheme: str
) -> None:
    (tmp_path / "local").mkdir()
    rounds = ["--rounds", "4", "--scheme", scheme]
    local = ["--local-nodes", str(WORKERS), "--clients", str(CLIENTS), "--listen", "127.0.0.1:0", *rounds]
    command = ["top_server", "--json", "--run-dir", str(tmp_path / "local" / "run"), *local]
    async with program(command, tmp_path / "local.log") as run:
        assert await run.ended(DEADLINE_S) == 0
    async with run_of(tmp_path, *rounds, *managers) as run:
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert model_of(tmp_path / "run") == model_of(tmp_path / "local" / "run")
    directory = RunDirectory(tmp_path / "run")
    machines = {event["address"].rpartition(":")[0] for event in run.events if event["event"] == "node_joined"}
    assert machines
    assert not {"127.0.0.1"} & machines
    assert len(list(directory.logs.glob("node-*.log"))) == WORKERS
    spawned = [event for event in run.events if event["event"] == "manager_spawned"]
    assert {event["address"].rpartition(":")[0] in machines for event in spawned} == {bool(managers)}
    slurm.wait_until_empty()


async def test_steps_of_one_allocation_give_the_bits_of_local_nodes(slurm: Cluster, tmp_path: Path) -> None:
    plan = planned(4, seed=6, min_clients=CLIENTS, pause_s=0.0)
    flags = ["--place", "srun", "--workers", str(WORKERS), "--clients", str(CLIENTS), *settings_of(plan)]
    command = [sys.executable, "-m", "top_server", "--json", "--run-dir", str(tmp_path / "run"), *flags]
    script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
    shape = [f"--nodes={len(MACHINES)}", f"--ntasks-per-node={WORKERS // len(MACHINES)}", f"--output={tmp_path}/log"]
    slurm.run("sbatch", f"--chdir={tmp_path}", *shape, told=script)
    await asyncio.to_thread(slurm.wait_until_empty, DEADLINE_S)
    assert differing(plan, tmp_path / "run") == [], (tmp_path / "log").read_text()
    events = read_lines(RunDirectory(tmp_path / "run").events)
    assert events[-1]["event"] == "run_finished"
    addresses = [event["address"] for event in events if event["event"] == "node_joined"]
    assert len(addresses) == WORKERS
    assert not [address for address in addresses if address.startswith("127.")]


async def test_steps_end_with_their_top_server(slurm: Cluster, tmp_path: Path) -> None:
    flags = ["--place", "srun", "--workers", str(WORKERS), "--clients", str(CLIENTS), "--rounds", "1000"]
    command = [sys.executable, "-m", "top_server", "--json", "--run-dir", str(tmp_path / "run"), *flags]
    # The allocation outlives the top server: only its end can tell the workers.
    script = f"#!/bin/sh\n{shlex.join(command)} & echo $! > pid\nwait\nsleep 600\n"
    shape = [f"--nodes={len(MACHINES)}", f"--ntasks-per-node={WORKERS // len(MACHINES)}", f"--output={tmp_path}/log"]
    slurm.run("sbatch", f"--chdir={tmp_path}", *shape, told=script)
    events = RunDirectory(tmp_path / "run").events
    await asyncio.to_thread(slurm.wait_until, lambda: events.exists() and "round_finished" in events.read_text())
    assert len([name for name in slurm.steps() if name.startswith("node-")]) == WORKERS
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    await asyncio.to_thread(slurm.wait_until, lambda: not [name for name in slurm.steps() if name.startswith("node-")])


def hit(slurm: Cluster, rng: random.Random) -> str:
    """Requeues a running task, or preempts all tasks of a machine, as soon as there is one."""
    task, machine = rng.choice(sorted(slurm.running()))
    if rng.random() < 0.5:
        slurm.run("scontrol", "requeue", task)
        return f"requeue {task}"
    slurm.run(
        *("sbatch", f"--partition={HIGH}", "--exclusive", f"--nodelist={machine}", "--output=/dev/null"),
        *("--wrap", "sleep 1"),
    )
    return f"preempt {machine}"


async def test_twenty_requeues_and_preemptions_leave_the_oracles_bits(slurm: Cluster, tmp_path: Path) -> None:
    hits = 20
    plan, rng = planned(24, seed=5, min_clients=12, pause_s=0.05), random.Random(20)
    done: list[str] = []
    async with run_of(tmp_path, *settings_of(plan)) as run:
        await run.event("run_started", DEADLINE_S)
        for number in range(1, hits + 1):
            await run.event("round_started", DEADLINE_S, round=number)
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            done.append(await asyncio.to_thread(hit, slurm, rng))
        assert await run.ended(600.0) == 0, run.errors
    assert len(done) == hits
    assert {what.split()[0] for what in done} == {"requeue", "preempt"}
    assert differing(plan, tmp_path / "run") == []
    joins = [event for event in run.events if event["event"] == "node_joined"]
    assert len(joins) >= WORKERS + hits // 2, "tasks did not come back"
    slurm.wait_until_empty()


@pytest.mark.parametrize("place", ["slurm", "srun"])
async def test_a_run_is_continued_by_the_next_job_when_its_allocation_ends(
    slurm: Cluster, tmp_path: Path, place: str
) -> None:
    # Two minutes, of which the last half minute is for the stop: an allocation must be enough for a few rounds.
    plan = planned(50, seed=1, min_clients=CLIENTS, pause_s=0.01)
    settings = tmp_path / "run.toml"
    settings.write_text(
        f'place = "{place}"\nworkers = {WORKERS}\nclients = {CLIENTS}\nrounds = {plan.rounds}\nseed = {plan.seed}\n'
        f'alpha = {plan.alpha}\nbeta = 2\nsampling_rate = 1.0\nmin_clients = {CLIENTS}\ntask = "{TASK}"\n'
        f'optimizer = "sgd"\n[task_option]\nclients = {CLIENTS}\npause = {plan.pause_s}\n'
        f'variant = "{plan.variant}"\n' + ("[place_option]\npoll = 0.5\n" if place == "slurm" else "")
    )
    run_dir = tmp_path / "run"
    command = ["top_server", "slurm", "--config", str(settings), "--run-dir", str(run_dir), "--time", "2"]
    if place == "srun":
        command += ["--sbatch", f"--nodes={len(MACHINES)} --ntasks-per-node={WORKERS // len(MACHINES)}"]
    async with program([*command, "--notice", "30", "--cpus", "1"], tmp_path / "render.log") as render:
        assert await render.ended(DEADLINE_S) == 0, render.errors
    slurm.run("sbatch", told="\n".join(render.lines) + "\n")
    await asyncio.to_thread(slurm.wait_until_empty, 600.0)
    events = read_lines(RunDirectory(run_dir).events)
    assert events[-1]["event"] == "run_finished", (tmp_path / "run.log").read_text()
    assert [event for event in events if event["event"] == "run_resumed"], (
        "one job was enough: let the run last longer"
    )
    assert [event["code"] for event in events if event["event"] == "run_stopped"]
    assert differing(plan, run_dir) == []


async def test_workers_of_a_top_server_that_was_killed_are_ended_before_the_next_ones_begin(
    slurm: Cluster, tmp_path: Path
) -> None:
    plan = planned(6, seed=2, min_clients=CLIENTS, pause_s=0.02)
    async with run_of(tmp_path, *settings_of(plan)) as run:
        await run.event("round_finished", DEADLINE_S, round=2)
        run.send(signal.SIGKILL)
        await run.ended(DEADLINE_S)
    assert len(slurm.tasks()) == WORKERS
    async with program(["top_server", "--json", "--resume", str(tmp_path / "run")], tmp_path / "resumed.log") as run:
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert "the workers of an earlier start of this run are ended first" in run.errors
    assert differing(plan, tmp_path / "run") == []
    slurm.wait_until_empty()


async def test_a_job_that_slurm_refuses_ends_the_run_with_slurms_reason(slurm: Cluster, tmp_path: Path) -> None:
    async with run_of(tmp_path, "--place-option", "partition=nowhere") as run:
        assert await run.ended(DEADLINE_S) == 2
    assert "Slurm refuses the job of the workers" in run.errors
    assert "nowhere" in run.errors
    assert "--place-option" in run.errors


async def test_a_job_that_never_starts_ends_the_run_with_the_reason_of_the_queue(
    slurm: Cluster, tmp_path: Path
) -> None:
    for machine in ("n1", "n2"):
        slurm.run("scontrol", "update", f"NodeName={machine}", "State=DRAIN", "Reason=test")
    async with run_of(tmp_path, "--place-option", "start_timeout=4", "--join-timeout", "60") as run:
        assert await run.ended(DEADLINE_S) == 5
    assert "in Slurm's queue" in run.errors
    assert "Resources" in run.errors or "Nodes_required" in run.errors or "DRAIN" in run.errors, run.errors
    slurm.wait_until_empty()


async def test_a_worker_that_fails_ends_the_run_with_its_own_error(slurm: Cluster, tmp_path: Path) -> None:
    async with run_of(tmp_path, "--task", "tests.support.no_such_module:Task") as run:
        assert await run.ended(DEADLINE_S) == 3
    assert "slurm node-" in run.errors
    assert "no_such_module" in run.errors


async def test_a_cancelled_worker_is_lost_and_the_run_goes_on(slurm: Cluster, tmp_path: Path) -> None:
    plan = planned(5, seed=3, min_clients=6, pause_s=0.02)
    async with run_of(tmp_path, *settings_of(plan)) as run:
        await run.event("round_finished", DEADLINE_S, round=1)
        task, _ = next(one for one in slurm.tasks() if one[0].endswith("_3"))
        slurm.run("scancel", task)
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert "slurm node-3 ended: its task was cancelled" in run.errors
    assert differing(plan, tmp_path / "run") == []
