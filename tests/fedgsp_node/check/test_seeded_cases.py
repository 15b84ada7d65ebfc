"""Mistakes that a site can make before the first round: a check names each by its line, and says what to do."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedgsp.identity import node
from fedgsp.messages import PROTOCOL, Failure, Hello
from fedgsp.report import Line, State
from fedgsp_node.check import client, command
from fedgsp_node.clients import Clients
from fedgsp_node.connections.hello import hello_of
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.digits import Digits
from tests.support.callers import ANYBODY
from tests.support.certificates import Authority, unchecked
from tests.support.checked import checked, dropping, found, settings
from tests.support.folder_task import CLIENTS, Folder, write
from tests.support.serving import nobody


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that are dropped are waited for in vain."""
    monkeypatch.setattr(client, "CONNECT_S", 0.4)


def bad(lines: dict[str, Line]) -> list[str]:
    return [name for name, line in lines.items() if line.state is State.BAD]


async def test_a_node_that_could_join_has_only_good_lines_and_does_not_join() -> None:
    async with checked(at=(ports := range(20_000, 60_000))) as top:
        lines = await found(top.address)
        assert [str(line) for line in lines.values() if line.state is not State.GOOD] == []
        assert top.membership.nodes == 0
        assert top.recorder.events == []
    assert {"address", "clocks", "manager ports", "network", "data", "model", "disk", "admission"} <= set(lines)
    assert int(lines["manager ports"].words.split()[0].rpartition(":")[2]) in ports
    assert "own certificate" not in lines


async def test_a_wrong_port_is_told_by_the_address() -> None:
    async with nobody() as gone:
        lines = await found(gone.address)
    assert bad(lines) == ["address"]
    assert f"nothing listens at {gone.address}" in lines["address"].words
    assert "listening on" in lines["address"].remedy
    assert lines["top server"].state is State.UNCHECKED
    assert lines["data"].state is State.GOOD


async def test_a_firewall_that_drops_is_told_by_the_address() -> None:
    with dropping() as address:
        lines = await found(address)
    assert bad(lines) == ["address"]
    assert "does not answer" in lines["address"].words
    assert "firewall" in lines["address"].remedy


async def test_a_firewall_that_drops_the_ports_of_managers_alone_is_told_by_them() -> None:
    with dropping() as closed:
        async with checked(ports="7100-7199") as top:
            await top.managers.give_way(lambda: [closed])
            lines = await found(top.address)
    assert bad(lines) == ["manager ports"]
    assert f"{closed} does not answer" in lines["manager ports"].words
    assert "ports 7100-7199" in lines["manager ports"].remedy


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def flags(authority: Authority, **certificate: Any) -> dict[str, Any]:
    files = authority.issue("n0", identity=node("n0"), **certificate)
    return {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}


DATES = {"expired": ({"days": -1}, "it expired on"), "not yet": ({"begins": 1, "days": 9}, "it is not valid yet")}


@pytest.mark.parametrize("dates", DATES)
async def test_a_certificate_of_this_node_that_is_not_good_now_is_told_with_its_dates(
    authority: Authority, dates: str
) -> None:
    changes, words = DATES[dates]
    async with checked(unchecked(authority.issue("top"))) as top:
        lines = await found(top.address, **flags(authority, **changes))
    assert bad(lines) == ["own certificate"]
    assert words in lines["own certificate"].words
    assert lines["server certificate"].state is State.GOOD
    assert lines["top server"].state is State.UNCHECKED


@pytest.mark.parametrize("dates", DATES)
async def test_a_certificate_of_the_top_server_that_is_not_good_now_is_told_with_its_dates(
    authority: Authority, dates: str
) -> None:
    changes, words = DATES[dates]
    async with checked(unchecked(authority.issue("top", **changes))) as top:  # type: ignore[arg-type]
        lines = await found(top.address, **flags(authority))
    assert bad(lines) == ["server certificate"]
    assert words in lines["server certificate"].words


async def test_a_wrong_host_name_is_told_with_the_names_of_the_certificate(authority: Authority) -> None:
    async with checked(unchecked(authority.issue("top", hosts=("top.example.org", "10.1.2.3")))) as top:
        lines = await found(top.address, **flags(authority))
    assert bad(lines) == ["server certificate"]
    assert "the host names that it has: top.example.org, 10.1.2.3" in lines["server certificate"].words
    assert "--host 127.0.0.1" in lines["server certificate"].remedy


async def test_good_certificates_have_good_lines(authority: Authority) -> None:
    async with checked(unchecked(authority.issue("top"))) as top:
        lines = await found(top.address, **flags(authority))
    assert bad(lines) == []
    assert "node n0" in lines["own certificate"].words
    assert lines["admission"].state is lines["manager ports"].state is State.GOOD


async def test_tls_on_one_side_alone_is_told(authority: Authority) -> None:
    async with checked() as plain:
        lines = await found(plain.address, **flags(authority))
        assert bad(lines) == ["server certificate"]
        assert "no TLS handshake" in lines["server certificate"].words
    async with checked(unchecked(authority.issue("top"))) as secured:
        lines = await found(secured.address)
        assert bad(lines) == ["top server"]
        assert "without TLS" in lines["top server"].words


async def test_json_is_one_object_and_the_exit_code_says_that_a_line_is_not_good(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with nobody() as gone:
        with pytest.raises(typer.Exit) as ended:
            await command._check(settings(gone.address), as_json=True)
    assert ended.value.exit_code == command.NOT_GOOD != 0
    report = json.loads(capsys.readouterr().out)
    assert (report["good"], report["checks"][0]["name"], report["checks"][0]["state"]) == (False, "address", "bad")
    assert isinstance(report["seconds"], float)


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_clock_that_is_off_by_an_hour_is_told(hours: int) -> None:
    async with checked(clock=lambda: time.time() + 3600 * hours) as top:
        lines = await found(top.address)
    assert bad(lines) == ["clocks"]
    assert f"60 min {'ahead of' if hours > 0 else 'behind'} this machine" in lines["clocks"].words


def first_node(**changes: Any) -> Hello:
    """A node of the digits that has joined before."""
    clients = Clients(load_task("digits", {"clients": "8"}), (4, 5))
    return dataclasses.replace(hello_of(settings("127.0.0.1:1"), clients, "first", ""), **changes)


async def test_another_file_of_the_task_than_that_of_the_first_node_is_told() -> None:
    async with checked() as top:
        assert not isinstance(await top.membership.admit(first_node(task_digest=bytes(32)), ANYBODY), Failure)
        lines = await found(top.address)
    assert bad(lines) == ["task file"]
    assert lines["task file"].remedy == "install the same version of fedgsp on all nodes"
    assert lines["admission"].state is State.GOOD


async def test_another_file_of_the_users_own_task_is_replaced_and_not_fedgsp(tmp_path: Path) -> None:
    write(tmp_path, *range(CLIENTS))
    task = "tests.support.folder_task:Folder"
    own = {"task": task, "task_option": {"folder": str(tmp_path)}}
    first = hello_of(settings("127.0.0.1:1", **own), Clients(Folder(tmp_path), (2,)), "first", "")
    async with checked(task=task) as top:
        first = dataclasses.replace(first, task_digest=bytes(32))
        assert not isinstance(await top.membership.admit(first, ANYBODY), Failure)
        lines = await found(top.address, **own)
    assert bad(lines) == ["task file"]
    assert lines["task file"].remedy == "give all nodes the same file"


async def test_a_task_that_the_top_server_would_refuse_is_told_with_its_words() -> None:
    async with checked() as top:
        assert not isinstance(await top.membership.admit(first_node(num_classes=3), ANYBODY), Failure)
        lines = await found(top.address)
    assert bad(lines) == ["admission"]
    assert "its task has 10 classes, and the run has another number" in lines["admission"].words


async def test_a_name_of_a_client_that_another_client_has_is_told_before_the_node_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = first_node()
    taken = tuple(dataclasses.replace(one, name="site 0") if one.client == 4 else one for one in first.clients)
    monkeypatch.setattr(Digits, "client_names", tuple(f"site {client}" for client in range(8)))
    async with checked() as top:
        assert not isinstance(await top.membership.admit(dataclasses.replace(first, clients=taken), ANYBODY), Failure)
        lines = await found(top.address)
    assert bad(lines) == ["admission"]
    assert "the name of its client 0 is that of another client" in lines["admission"].words


async def test_another_version_of_the_protocol_is_told() -> None:
    async with checked(protocol=PROTOCOL + 1, own={"fedgsp": "9.9"}) as top:
        lines = await found(top.address)
    assert bad(lines) == ["versions"]
    assert f"protocol {PROTOCOL}, and the top server {PROTOCOL + 1}" in lines["versions"].words
    assert "fedgsp 9.9" in lines["versions"].words


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "full"
    folder.mkdir(mode=0o700)
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    try:
        allowed = subprocess.run(mounting, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this user cannot mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_told_with_the_folder(full_disk: Path) -> None:
    async with checked() as top:
        lines = await found(top.address, state_dir=full_disk)
    assert bad(lines) == ["disk"]
    assert f"{full_disk} (--state-dir) has 0.1 MB free" in lines["disk"].words
    assert "another --state-dir" in lines["disk"].remedy


async def test_a_missing_data_file_is_told_with_the_client(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    task = "tests.support.folder_task:Folder"
    async with checked(task=task) as top:
        lines = await found(top.address, task=task, task_option={"folder": str(tmp_path)}, clients=None)
    assert bad(lines) == ["data"]
    assert lines["data"].words.startswith("data of client 1 cannot be used: the task's data(1) raised FileNotFound")
    assert "client-1.npy" in lines["data"].words
    assert "2 of 3 clients have 12 training and 12 test samples" in lines["data"].words
    assert lines["model"].state is State.GOOD  # on the other clients
