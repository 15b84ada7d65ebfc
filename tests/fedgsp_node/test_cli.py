from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError, PeerError, TaskError
from fedgsp.identity import node
from fedgsp.options import parse_clients
from fedgsp.settings.run import NodeSettings
from fedgsp_node import cli, server
from fedgsp_node.connections.credentials import credentials
from tests.support.certificates import Authority
from tests.support.processes import program


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        ("3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("5-5", (5,)),
        ("0-3,7,9-12", (0, 1, 2, 3, 7, 9, 10, 11, 12)),
        (" 9 , 1 - 2 ", (1, 2, 9)),
        ("1-9/4,2", (1, 2, 5, 9)),
        ("0-8 / 3,4-4/7", (0, 3, 4, 6)),
        ("0-19999999/1000000", tuple(range(0, 20_000_000, 1_000_000))),
    ],
)
def test_clients_are_ids_and_ranges(text: str, clients: tuple[int, ...]) -> None:
    assert parse_clients(text) == clients


@given(st.sets(st.integers(0, 10_000), min_size=1))
def test_any_list_of_clients_can_be_written(clients: set[int]) -> None:
    assert parse_clients(",".join(map(str, clients))) == tuple(sorted(clients))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5-2", "reversed range 5-2; write 2-5"),
        ("1,0-3", "client 1 twice"),
        ("1,1", "client 1 twice"),
        ("", "has ''"),
        ("1,,2", "has ''"),
        ("-1", "has '-1'"),
        ("1-2-3", "has '1-2-3'"),
        ("a", "has 'a'"),
        ("1.5", "has '1.5'"),
        ("٣", "has '٣'"),
        ("0-99999999999", "at most"),
        ("0-9/0", "step 0 in 0-9/0"),
        ("0-9/", "has '0-9/'"),
        ("4/2", "has '4/2'"),
        ("0-8/2,6", "client 6 twice"),
    ],
)
def test_what_is_no_list_of_clients_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="--clients") as error:
        parse_clients(text)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "error: no command is given; give `start`"),
        (["start"], "error: --top-server is missing; give --top-server HOST:PORT"),
        (["start", "--top-server", "here"], "error: --top-server: 'here' is not an address"),
        (["start", "--top-server", "h:1", "--peer-listen", "x"], "error: --peer-listen: 'x' is not an address"),
        (
            ["start", "--top-server", "localhost:1", "--advertise", "localhost:2"],
            "error: --advertise names an address, but this node",
        ),
        (["start", "--top-server", "localhost:1", "--clients", "3-1"], "error: --clients has the reversed range 3-1"),
        (
            ["start", "--top-server", "h:1", "--threads", "0"],
            "error: --threads is 0; give a whole number of at least",
        ),
        (["start", "--top-server", "h:1", "--threads", "3000000000"], "error: --threads is 3000000000; give a whole"),
        (["start", "--top-server", "h:1", "--connect-timeout", "0"], "error: --connect-timeout is 0"),
        (["start", "--top-server", "h:1", "--connect-timeout", "nan"], "error: --connect-timeout is nan"),
        (
            ["start", "--top-server", "h:1", "--hand-over", "x"],
            "error: --hand-over cannot be 'x'; known: auto",
        ),
        (["start", "--top-server", "h:1", "--tls-cert", "c"], "error: --tls-cert without --tls-ca and --tls-key"),
        (["check"], "error: --top-server is missing; give --top-server HOST:PORT"),
        (["check", "--top-server", "localhost:1", "--data-timeout", "0"], "error: --data-timeout is 0"),
        (["begin"], "error: No such command 'begin'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgsp-node", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ConfigError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(error)
    assert captured.err.count("\n") == 1


def test_a_certificate_must_cover_where_peers_dial_the_node(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue(hosts=["node.example.org"], identity=node("a"))
    tls: dict[str, Any] = {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}
    for peer_listen, advertise, dialled in (
        ("127.0.0.1:0", None, "127.0.0.1"),
        ("0.0.0.0:0", "other.example.org:0", "other.example.org"),
    ):
        with pytest.raises(ConfigError, match=f"does not cover {dialled}, where other nodes dial this one"):
            credentials(NodeSettings(peer_listen=peer_listen, advertise=advertise, **tls))
    assert credentials(NodeSettings(**tls)) is not None
    assert credentials(NodeSettings(peer_listen="[::]:0", advertise="node.example.org:0", **tls)) is not None
    assert credentials(NodeSettings(peer_listen="127.0.0.1:0")) is None


def test_settings_may_stand_in_a_file_and_flags_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "node.toml"
    file.write_text('top_server = "localhost:7000"\nclients = "0-3"\nthreads = 2\n[task_option]\nseed = 4\n')
    started: list[NodeSettings] = []

    async def live(settings: NodeSettings) -> None:
        started.append(settings)

    monkeypatch.setattr(server, "run", live)
    monkeypatch.setattr(sys, "argv", ["fedgsp-node", "start", "--config", str(file), "--threads", "3"])
    with pytest.raises(SystemExit):
        cli.main()
    (found,) = started
    assert found == NodeSettings(top_server="localhost:7000", clients="0-3", threads=3, task_option={"seed": "4"})
    assert found.client_ids == (0, 1, 2, 3)


def test_help_and_mistakes_need_no_torch() -> None:
    script = "import sys; sys.argv[1:] = ['start', '--help']; import atexit\n"
    script += "atexit.register(lambda: print('torch' in sys.modules, 'grpc' in sys.modules))\n"
    script += "from fedgsp_node.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1] == "False False"


async def test_a_node_that_cannot_load_its_task_says_why(tmp_path: Path) -> None:
    command = ["fedgsp_node", "start", "--top-server", "127.0.0.1:1", "--task", "digts"]
    async with program(command, tmp_path / "node.log") as started:
        assert await started.ended() == TaskError.exit_code
    assert started.errors.startswith("error: there is no task 'digts'; did you mean 'digits'?")
    assert started.errors.count("\n") == 1


async def test_what_a_task_prints_is_not_among_the_json_lines(tmp_path: Path) -> None:
    text = """
import os, subprocess
def make():
    print('reading the archive')
    subprocess.run(['echo', 'unpacked'])
    os.write(1, b'as bytes\\n')
"""
    (tmp_path / "printing.py").write_text(text)
    command = ["fedgsp_node", "start", "--json", "--top-server", "127.0.0.1:1", "--task", "printing:make"]
    async with program(command, tmp_path / "node.log") as started:
        assert await started.ended() == TaskError.exit_code
    assert started.lines == []
    assert {"reading the archive", "unpacked", "as bytes"} <= {*started.errors.splitlines()}


async def test_a_task_that_changes_the_working_directory_and_the_threads_changes_neither_for_the_node(
    tmp_path: Path,
) -> None:
    text = """
import os
import torch
from tests.support.blobs_task import Blobs
torch.set_num_threads(3)
os.makedirs("elsewhere")
os.chdir("elsewhere")

class Moved(Blobs):
    def correct(self, outputs, targets):
        print("threads", torch.get_num_threads(), flush=True)
        return super().correct(outputs, targets)
"""
    (tmp_path / "moving.py").write_text(text)
    command = ["fedgsp_node", "start", "--top-server", "127.0.0.1:1", "--insecure", "--connect-timeout", "0.1"]
    command += ["--task", "moving:Moved", "--state-dir", "state", "--threads", "2"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    async with program(command, tmp_path / "node.log", environment) as started:
        assert await started.ended() == PeerError.exit_code
    assert "127.0.0.1:1" in started.errors.splitlines()[-1]
    assert set(started.lines) == {"threads 2"}
    assert (tmp_path / "state").is_dir()
    assert not (tmp_path / "elsewhere" / "state").exists()
