"""Group managers on the machines of workers: the same bits, also when a machine is lost with its managers."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from pathlib import Path

import psutil
import pytest

from fedgsp.identity import Identity, manager
from fedgsp.security.signing import uris_in
from tests.support.placed import CLIENTS, WORKERS, differing, planned, settings_of
from tests.support.processes import Process, program
from top_server.federation.folder import made
from top_server.record.directory import RunDirectory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
DEADLINE_S = 120.0


def command(run: Path, *flags: str) -> list[str]:
    """A top server whose workers run its managers."""
    placed = ["--local-nodes", str(WORKERS), "--clients", str(CLIENTS), "--place-managers"]
    return ["top_server", "--json", "--run-dir", str(run), "--listen", "127.0.0.1:0", *placed, *flags]


def logs_of_managers(run: Path) -> list[Path]:
    """Logs that managers beside the top server would have."""
    return list(RunDirectory(run).logs.glob("manager-*"))


def hosts_of(run: Process) -> dict[str, str]:
    """Manager -> the worker that runs it."""
    return {event["manager"]: event["node"] for event in run.events if event["event"] == "manager_spawned"}


@pytest.mark.parametrize("scheme", ["fedgsp", pytest.param("fedavg", marks=pytest.mark.slow)])
async def test_managers_on_the_machines_of_workers_leave_the_oracles_bits(tmp_path: Path, scheme: str) -> None:
    plan = dataclasses.replace(planned(2, seed=3, min_clients=CLIENTS, pause_s=0.0), scheme=scheme)
    async with program(command(tmp_path / "run", *settings_of(plan), "--scheme", scheme), tmp_path / "log") as run:
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert differing(plan, tmp_path / "run") == []
    found = hosts_of(run)
    assert len(set(found.values())) == len(found), "two managers share a machine while another one has none"
    assert not logs_of_managers(tmp_path / "run")


def worker_process(run: Process, name: str) -> psutil.Process:
    """The process of a worker, which is a child of a template of the top server."""
    for child in psutil.Process(run.pid).children(recursive=True):
        if f"--name {name}" in " ".join(child.cmdline()):
            return child
    raise AssertionError(f"{name} does not run")


@pytest.mark.slow
async def test_the_managers_of_a_machine_that_is_lost_are_replaced_on_others(tmp_path: Path) -> None:
    plan = planned(4, seed=4, min_clients=12, pause_s=0.01)
    async with program(command(tmp_path / "run", *settings_of(plan)), tmp_path / "log") as run:
        await run.event("round_started", DEADLINE_S, round=2)
        lost = next(iter(hosts_of(run).values()))
        worker_process(run, lost).send_signal(signal.SIGKILL)
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert differing(plan, tmp_path / "run") == []
    gone = [event for event in run.events if event["event"] == "manager_lost"]
    assert {event["reason"] for event in gone} == {f"worker {lost} is gone"}
    after = [event["node"] for event in run.events[run.events.index(gone[0]) :] if event["event"] == "manager_spawned"]
    assert after
    assert lost not in after


def check_own(file: Path, who: Identity) -> None:
    """A certificate with its key in a file that only this user can read."""
    assert file.stat().st_mode & 0o077 == 0
    assert uris_in(file.read_bytes().partition(b"-----BEGIN PRIVATE")[0])[0] == who.uri


@pytest.mark.slow
async def test_each_manager_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    made(tmp_path / "federation")
    plan = planned(2, seed=5, min_clients=CLIENTS, pause_s=0.01)
    flags = [*settings_of(plan), "--federation", str(tmp_path / "federation")]
    async with program(command(tmp_path / "run", *flags), tmp_path / "log") as run:
        spawned = await run.event("manager_spawned", DEADLINE_S)
        key = tmp_path / "run" / "state" / spawned["node"] / "managers" / f"{spawned['manager']}.pem"
        check_own(key, manager(spawned["manager"]))
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert differing(plan, tmp_path / "run") == []
    assert not await asyncio.to_thread(key.exists)
