from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedgsp
from fedgsp import logs
from fedgsp.errors import ConfigError, RunError, TaskError
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described
from fedgsp.settings.flags import combine
from fedgsp.settings.run import RunConfig
from tests.support.certificates import Authority
from tests.support.processes import program, top_server
from top_server import cli
from top_server.choosing import NAMES

TOP_SERVER = [sys.executable, "-m", "top_server"]

#: Runs a command in a terminal of its own, closes the terminal when a run waits there, and prints the exit code.
CLOSES_ITS_TERMINAL = """
import os, pty, sys
child, terminal = pty.fork()
if not child:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
while b"waiting for nodes" not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def end(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command, run in this process: for what ends before the run begins."""
    monkeypatch.setattr(sys, "argv", ["top-server", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_help_names_every_flag_and_every_known_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert end(["--help"], monkeypatch) == 0
    text = capsys.readouterr().out
    words = ("--config", "grouping-service", "fedavg", "weighted-mean", "icg", "parallel")
    for word in (*map(flag, described(RunConfig)), *words):
        assert word in text


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(["--version"], monkeypatch) == 0
    assert capsys.readouterr().out == f"top-server {fedgsp.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--rounds", "0"], "error: --rounds is 0; give a whole number of at least 1"),
        (
            ["--rounds", "many"],
            "error: Invalid value for '--rounds': Input should be a valid integer, unable to parse string as an"
            " integer (given: 'many'); see --help",
        ),
        (["--round", "3"], "error: No such option: --round"),
        (["--growth", "logg"], "error: --growth cannot be 'logg'; did you mean 'log'?"),
        (
            ["--task-option", "clients"],
            "error: --task-option 'clients' is not an option; write --task-option key=value",
        ),
        (["--config", "nowhere.toml"], "error: --config nowhere.toml: there is no such file"),
        (["--rounds", "3", "grouping-service"], "error: --rounds is a flag of a run, not of grouping-service"),
        (["grouping-service", "--listen", "x"], "error: --listen: 'x' is not an address"),
        (["grouping"], "error: No such command 'grouping'"),
        (["--tls-ca", "ca.pem"], "error: --tls-ca without --tls-cert and --tls-key; give all three flags for TLS"),
        (["grouping-service", "--tls-key", "x"], "error: --tls-key without --tls-ca and --tls-cert; give all three"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(arguments, monkeypatch) == ConfigError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(error)
    assert captured.err.count("\n") == 1


def test_a_certificate_for_another_host_is_refused_before_a_directory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "configure", lambda _: None)  # it would outlast this test
    files = Authority(tmp_path).issue(hosts=["top.example.org"])
    flags = ["--tls-ca", str(files.ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    for host, dialled in (("0.0.0.0", "127.0.0.1"), ("[::]", "::1"), ("localhost", "localhost")):
        arguments = ["--listen", f"{host}:0", "--run-dir", str(tmp_path / "run"), *flags]
        assert end(arguments, monkeypatch) == ConfigError.exit_code
        said = capsys.readouterr().err
        assert (
            f"does not cover {dialled}, where the top server dials its group managers; issue a certificate with"
            in said
        )
    arguments = ["--listen", "top.example.org:0", "--local-nodes", "1", "--run-dir", str(tmp_path / "run"), *flags]
    assert end(arguments, monkeypatch) == ConfigError.exit_code
    assert "does not cover 127.0.0.1, where local nodes are dialled" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_flags_win_over_the_file_option_by_option() -> None:
    base = RunConfig(rounds=3, alpha=1.5, task_option={"clients": "8", "seed": "1"})
    config = combine(base, {"rounds": 5, "task_option": {"seed": "2"}}, NAMES)
    assert (config.rounds, config.alpha) == (5, 1.5)
    assert config.task_option == {"clients": "8", "seed": "2"}


def test_options_of_a_file_go_with_the_task_they_belong_to() -> None:
    base = RunConfig(task="mnist", task_option={"clients": "8"}, grouping="icg", grouping_option={"mode": "all"})
    assert combine(base, {"task": "mnist"}, NAMES).task_option == {"clients": "8"}
    config = combine(base, {"task": "digits", "task_option": {"seed": "2"}}, NAMES)
    assert config.task_option == {"seed": "2"}
    assert config.grouping_option == {"mode": "all"}
    assert combine(base, {"grouping": "random"}, NAMES).grouping_option == {}


@pytest.mark.parametrize("existed", [False, True], ids=["new", "there before"])
async def test_a_start_that_nobody_joins_ends_with_the_reason_and_leaves_no_files(
    tmp_path: Path, existed: bool
) -> None:
    settings, record = tmp_path / "settings.toml", tmp_path / "run"
    settings.write_text('rounds = 7\nlisten = "127.0.0.1:0"\njoin_timeout = 0.1\n')
    if existed:
        record.mkdir()
    command = ["top_server", "--config", str(settings), "--run-dir", str(record)]
    async with program(command, tmp_path / "log") as started:
        assert await started.ended() == RunError.exit_code
    assert [line[9:] for line in started.lines[1:]] == ["waiting at most 0.1 s for 1 node and 1 client"]
    (reason,) = started.errors.splitlines()
    assert reason.startswith("error: only 0 of 1 node with 0 of 1 client joined")
    assert (os.listdir(record) == []) if existed else "run" not in os.listdir(tmp_path)


def test_a_task_that_raises_ends_a_start_in_the_usual_place_with_its_reason_and_leaves_no_folder_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "broken.py").write_text("def factory():\n    raise ValueError('no key to the archive')\n")
    arguments = ["--listen", "127.0.0.1:0", "--local-nodes", "1", "--task", "broken:factory"]
    command = [*TOP_SERVER, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    assert ended.returncode == TaskError.exit_code
    assert "no key to the archive" in ended.stderr  # the log of the node, which goes with the folder
    assert "broken.py:2" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "recorded in" not in ended.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_run_that_is_asked_to_stop_says_so_by_its_exit_code(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    async with top_server(tmp_path) as started:
        await started.event("listening")
        started.send(number)
        assert await started.ended() == code
    assert "Traceback" not in started.errors


def test_a_terminal_that_is_closed_stops_the_run_in_order(tmp_path: Path) -> None:
    command = [*TOP_SERVER, "--listen", "127.0.0.1:0", "--run-dir", str(tmp_path)]
    session = [sys.executable, "-c", CLOSES_ITS_TERMINAL, *command]
    ended = subprocess.run(session, capture_output=True, text=True, timeout=50, check=False)
    assert ended.stdout == "129\n"
    assert list(tmp_path.iterdir()) == []


async def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        "bash",
        *("-c", 'set -o pipefail; "$@" | head -c 0', "bash", *TOP_SERVER),
        *("--listen", "127.0.0.1:0", "--join-timeout", "0.1", "--run-dir", str(tmp_path), "--json"),
        stderr=subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == RunError.exit_code
    assert b"BrokenPipe" not in stderr


async def test_the_grouping_service_listens_until_it_is_stopped(tmp_path: Path) -> None:
    async with program(["top_server", "grouping-service", "--listen", "127.0.0.1:0"], tmp_path / "log") as started:
        assert "listening on 127.0.0.1:" in await started.line("")
        started.send(signal.SIGTERM)
        assert await started.ended() == 143
