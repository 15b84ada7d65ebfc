from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedgsp.options import clients_text, parse_clients
from fedgsp.settings.run import RunConfig
from top_server.placing.base import CA, OWN, Resources, Worker
from top_server.placing.workers import IMPORTS, imports, shares, workers

FOLDER = Path("/folder")


def made(config: RunConfig, **more: Any) -> list[Worker]:
    return workers(config, "127.0.0.1:7000", Path("/logs"), Path("/state"), **more)


def commands(config: RunConfig, **more: Any) -> list[list[str]]:
    return [worker.arguments("127.0.0.1", FOLDER / worker.name) for worker in made(config, **more)]


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


@given(st.data())
def test_clients_are_dealt_in_turn(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 400))
    nodes = data.draw(st.integers(1, clients))
    dealt = shares(clients, nodes)
    assert len(dealt) == nodes
    assert sorted(client for share in dealt for client in share) == list(range(clients))
    assert all(client % nodes == index for index, share in enumerate(dealt) for client in share)
    assert [parse_clients(clients_text(share)) for share in dealt] == [tuple(share) for share in dealt]


def test_each_worker_is_told_its_clients_and_the_task() -> None:
    config = RunConfig(local_nodes=2, clients=5, threads=3, task="mnist", task_option={"a": "b=c", "d": ""})
    first, second = commands(config)
    assert first[:4] == ["fedgsp_node", "start", "--name", "node-0"]
    assert [parse_clients(value(command, "--clients")) for command in (first, second)] == [(0, 2, 4), (1, 3)]
    assert [value(command, "--name") for command in (first, second)] == ["node-0", "node-1"]
    assert value(first, "--top-server") == "127.0.0.1:7000"
    assert value(first, "--state-dir") == "/state/node-0"
    assert value(first, "--threads") == "3"
    assert value(first, "--task") == "mnist"
    assert [first[i + 1] for i, word in enumerate(first) if word == "--task-option"] == ["a=b=c", "d="]


def test_workers_of_a_template_share_what_torch_imports_for_an_optimiser() -> None:
    assert imports(RunConfig()) == imports(RunConfig(optimizer="sgd")) == IMPORTS
    assert imports(RunConfig(optimizer="adam")) == [*IMPORTS, "torch._dynamo"]
    assert imports(RunConfig(optimizer="sgd", optimizer_option={"momentum": "0.9"})) == [*IMPORTS, "torch._dynamo"]


def test_workers_of_this_machine_take_its_gpus_in_turn_and_others_what_they_are_given() -> None:
    for device, told in (("auto", ["auto:0", "auto:1"]), ("cuda:1", ["cuda:1", "cuda:1"])):
        found = commands(RunConfig(local_nodes=2, clients=2, device=device))
        assert [value(command, "--device") for command in found] == told
    for command in commands(RunConfig(local_nodes=2, clients=2, device="auto"), resources=Resources(gpus=1)):
        assert value(command, "--device") == "auto"


def test_each_worker_is_given_the_files_of_the_top_server_if_it_has_none_of_its_own(tmp_path: Path) -> None:
    paths: dict[str, Any] = {f"tls_{name}": tmp_path / name for name in ("ca", "cert", "key")}
    (command,) = commands(RunConfig(local_nodes=1, **paths))
    for name in ("ca", "cert", "key"):
        assert value(command, f"--tls-{name}") == str(tmp_path / name)
    (command,) = commands(RunConfig(local_nodes=1, **paths), secrets=lambda name: {CA: b"ca", OWN: name.encode()})
    assert [value(command, f"--tls-{name}") for name in ("ca", "cert", "key")] == [
        "/folder/node-0/ca.pem",
        "/folder/node-0/node.pem",
        "/folder/node-0/node.pem",
    ]


def test_secrets_are_files_of_their_user_and_stand_in_no_text(tmp_path: Path) -> None:
    (worker,) = made(RunConfig(local_nodes=1), secrets=lambda _: {CA: b"the CA", OWN: b"the key"})
    worker.write(tmp_path / "of the worker")
    files = {path.name: (path.read_bytes(), path.stat().st_mode & 0o777) for path in tmp_path.glob("*/*")}
    assert files == {CA: (b"the CA", 0o600), OWN: (b"the key", 0o600)}
    assert (tmp_path / "of the worker").stat().st_mode & 0o077 == 0
    assert "the key" not in repr(worker)


def test_a_worker_of_another_machine_listens_everywhere_and_says_where() -> None:
    (worker,) = made(RunConfig(local_nodes=1))
    near, far = (worker.arguments(host, FOLDER) for host in ("127.0.0.1", "node17.cluster"))
    assert value(near, "--peer-listen") == "127.0.0.1:0"
    assert "--advertise" not in near
    assert (value(far, "--peer-listen"), value(far, "--advertise")) == ("0.0.0.0:0", "node17.cluster:0")


def test_each_worker_waits_for_a_silent_peer_as_long_as_the_top_server() -> None:
    (command,) = commands(RunConfig(local_nodes=1, lost_after=12.5))
    assert value(command, "--lost-after") == "12.5"


def test_a_single_worker_hosts_all_clients_of_the_task() -> None:
    (command,) = commands(RunConfig(local_nodes=1))
    assert "--clients" not in command


def test_a_run_that_starts_no_nodes_has_no_workers() -> None:
    assert made(RunConfig()) == []
