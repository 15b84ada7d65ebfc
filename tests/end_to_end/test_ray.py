"""A real Ray cluster on this machine plays runs: same bits, machines that come and go, and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM

import psutil
import pytest

from tests.support.placed import CLIENTS, WORKERS, differing, model_of, planned, settings_of
from tests.support.processes import Process, assert_gone, program, top_server
from tests.support.ray_cluster import Cluster, cluster
from top_server.record.directory import RunDirectory

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # those of Ray
]
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def empty(head: Cluster) -> Iterator[Cluster]:
    """A cluster without a machine for workers."""
    yield head
    head.clear()


@pytest.fixture
def two(empty: Cluster) -> Cluster:
    """A cluster with two machines for two workers each."""
    empty.add()
    empty.add()
    return empty


def run_of(
    folder: Path, address: str, *flags: str, workers: int = WORKERS, cpus: float = 1
) -> contextlib.AbstractAsyncContextManager[Process]:
    """A top server with workers in the cluster."""
    placed = ["--place", "ray", "--place-option", f"address={address}", "--place-option", f"cpus={cpus}"]
    placed += ["--workers", str(workers), "--clients", str(CLIENTS)]
    command = ["top_server", "--json", "--run-dir", str(folder / "run"), *placed, *flags]
    return program(command, folder / "top-server.log")


def nodes_of(run: Process, kind: str) -> list[str]:
    return [event["node"] for event in run.events if event["event"] == kind]


def processes_of(folder: Path) -> list[psutil.Process]:
    """The workers of the run in this folder, wherever they were started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if "fedgsp_node" in words and str(folder) in words:
                found.append(process)
    return found


@pytest.mark.parametrize("placed", [False, True], ids=["managers here", "managers placed"])
async def test_workers_in_a_cluster_give_the_bits_of_local_nodes(two: Cluster, tmp_path: Path, placed: bool) -> None:
    (tmp_path / "local").mkdir()
    flags = ["--local-nodes", str(WORKERS), "--clients", str(CLIENTS), "--rounds", "4"]
    async with top_server(tmp_path / "local", *flags) as run:
        assert await run.ended(DEADLINE_S) == 0
    managers = ["--place-managers"] if placed else []
    async with run_of(tmp_path, two.address, "--rounds", "4", *managers) as run:
        await run.event("round_finished", DEADLINE_S)
        family = [*run.family(), *processes_of(tmp_path / "run")]
        assert len(processes_of(tmp_path / "run")) == WORKERS
        assert await run.ended(DEADLINE_S) == 0, run.errors
    await assert_gone(family)
    assert model_of(tmp_path / "run") == model_of(tmp_path / "local" / "run")
    machines = {event["address"].rpartition(":")[0] for event in run.events if event["event"] == "node_joined"}
    assert machines
    assert not {"127.0.0.1"} & machines
    hosts = {event.get("node", "") for event in run.events if event["event"] == "manager_spawned"}
    assert ("" not in hosts) == placed
    logs = RunDirectory(tmp_path / "run").logs
    assert all("left run" in log.read_text() for log in logs.glob("node-*.log"))
    assert len([*logs.glob("node-*.log")]) == WORKERS


async def test_a_client_of_the_cluster_plays_a_run_with_a_task_that_ray_copies(two: Cluster, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "copied_task.py").write_text(
        "from fedgsp_node.tasks.digits import Digits\nclass Own(Digits):\n    pass\n"
    )
    flags = ["--task", "copied_task:Own", "--place-option", f"working_dir={tmp_path / 'code'}", "--rounds", "2"]
    async with run_of(tmp_path, two.client, *flags) as run:
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert len(nodes_of(run, "node_joined")) == WORKERS


async def test_a_machine_that_is_added_takes_the_workers_of_one_that_is_lost(empty: Cluster, tmp_path: Path) -> None:
    plan = planned(5, seed=4, min_clients=CLIENTS, pause_s=0.02)
    empty.add()
    goes = empty.add()
    async with run_of(tmp_path, empty.address, *settings_of(plan)) as run:
        await run.event("hop_finished", DEADLINE_S, round=2)
        empty.remove(goes)
        await run.event("round_waits", DEADLINE_S, round=3)
        lost = nodes_of(run, "node_left")
        empty.add()
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert len(lost) == 2
    assert sorted(nodes_of(run, "node_joined")[WORKERS:]) == sorted(lost)
    trained = [event["clients_trained"] for event in run.events if event["event"] == "round_finished"]
    assert [count < CLIENTS for count in trained] == [False, True, False, False, False]
    assert run.errors.count("the actor's node was terminated unexpectedly") == 2
    assert differing(plan, tmp_path / "run") == []


async def test_a_run_goes_on_while_a_worker_whose_actor_was_killed_is_placed_again(
    two: Cluster, tmp_path: Path
) -> None:
    plan = planned(12, seed=7, min_clients=6, pause_s=0.03)
    async with run_of(tmp_path, two.address, *settings_of(plan), "--min-nodes", str(WORKERS)) as run:
        await run.event("hop_finished", DEADLINE_S, round=2)
        actor = processes_of(tmp_path / "run")[0].parent()
        assert actor is not None
        actor.kill()
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert "its worker process has died" in run.errors
    assert "it is to come back" in run.errors
    assert differing(plan, tmp_path / "run") == []


async def test_a_run_begins_with_the_workers_that_have_a_machine(empty: Cluster, tmp_path: Path) -> None:
    plan = planned(1000, seed=6, min_clients=12, pause_s=0.01)
    empty.add()
    async with run_of(tmp_path, empty.address, *settings_of(plan)) as run:
        row = await run.event("round_finished", DEADLINE_S, round=1)
        assert row["clients_trained"] == 12
        empty.add()
        await run.event("round_finished", DEADLINE_S, clients_trained=CLIENTS)
        run.send(SIGTERM)
        assert await run.ended(DEADLINE_S) == 143
    assert sorted(nodes_of(run, "node_joined")) == [f"node-{number}" for number in range(WORKERS)]
    assert "waits for a machine of the Ray cluster: each machine with 1 CPU is taken" in run.errors


async def test_nothing_is_left_of_a_run_whose_top_server_is_killed(two: Cluster, tmp_path: Path) -> None:
    async with run_of(tmp_path, two.address, "--rounds", "1000") as run:
        await run.event("round_finished", DEADLINE_S)
        family = [*run.family(), *processes_of(tmp_path / "run")]
        run.send(SIGKILL)
        await run.ended(DEADLINE_S)
        await assert_gone(family)
    command = ["top_server", "--json", "--resume", str(tmp_path / "run")]
    async with program(command, tmp_path / "resumed.log") as run:
        await run.event("round_finished", DEADLINE_S)


async def test_a_run_whose_driver_is_killed_ends_with_the_reason(two: Cluster, tmp_path: Path) -> None:
    async with run_of(tmp_path, two.address, "--rounds", "1000") as run:
        await run.event("round_finished", DEADLINE_S)
        family = processes_of(tmp_path / "run")
        [driver] = [one for one in run.family() if "top_server.placing.ray.driver" in " ".join(one.cmdline())]
        driver.kill()
        assert await run.ended(DEADLINE_S) == 6
        await assert_gone(family)
    assert "no node is left: ray node-" in run.errors
    assert "Ray's driver ended with exit code -9" in run.errors
    assert f"--resume {tmp_path / 'run'}" in run.errors


async def test_secrets_are_in_files_for_one_user_alone_and_parts_of_a_gpu_are_dealt(
    empty: Cluster, tmp_path: Path
) -> None:
    empty.add(gpus=1)
    flags = ["--place-option", "gpus=0.5", "--rounds", "1000"]
    async with run_of(tmp_path, empty.address, *flags, workers=2) as run:
        await run.event("round_finished", DEADLINE_S)
        workers = processes_of(tmp_path / "run")
        assert [worker.environ()["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "0"]
        for worker in workers:
            words = worker.cmdline()
            files = [Path(words[words.index(flag) + 1]) for flag in ("--tls-ca", "--tls-cert", "--tls-key")]
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
            assert files[0].parent.stat().st_mode & 0o777 == 0o700
            assert "PRIVATE KEY" in files[2].read_text()
            assert not any("PRIVATE KEY" in text for text in (*words, *worker.environ().values()))
        secret = [line for line in files[2].read_text().splitlines() if len(line) == 64]
        assert secret
        assert not [path for path, text in empty.logs().items() if any(line in text for line in secret)]


async def test_what_no_machine_has_ends_the_run_with_what_is_missing(two: Cluster, tmp_path: Path) -> None:
    flags = ["--place-option", "start_timeout=6", "--place-option", "gpus=1", "--join-timeout", "60"]
    async with run_of(tmp_path, two.address, *flags) as run:
        assert await run.ended(DEADLINE_S) == 5
    said = "no machine of 3 has 1 CPU and 1 GPU; a machine has at most 2 CPUs and 0 GPUs"
    assert f"it had no machine for 6 s: {said}" in run.errors


async def test_a_worker_that_fails_ends_the_run_with_its_own_error(two: Cluster, tmp_path: Path) -> None:
    async with run_of(tmp_path, two.address, "--task", "tests.support.no_such_module:Task") as run:
        assert await run.ended(DEADLINE_S) == 3
    assert "ray node-" in run.errors
    assert "no_such_module" in run.errors


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
async def test_an_address_without_a_cluster_is_refused_with_the_remedy(tmp_path: Path, address: str) -> None:
    async with run_of(tmp_path, address) as run:
        assert await run.ended(DEADLINE_S) == 2
    assert f"there is no Ray cluster to use at {address}: " in run.errors
    assert "`ray start --head`" in run.errors
    assert "Traceback" not in run.errors


async def test_machines_without_fedgsp_end_the_run_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "top_server.py").write_text("raise ModuleNotFoundError(\"No module named 'top_server'\")\n")
    with cluster(PYTHONPATH=str(tmp_path)) as made:
        made.add()
        async with run_of(tmp_path, made.address) as run:
            assert await run.ended(DEADLINE_S) == 5, run.errors
    assert "the machine lacks a package: ModuleNotFoundError: No module named 'top_server'" in run.errors
    assert "Install FedGSP there" in run.errors
