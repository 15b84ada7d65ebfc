"""The commands as a person types them: real processes on loopback, found by their ports and ended by their pids."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.reference import assert_same_bits

from top_server.checkpoint import load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

QUICK = ["--growth", "log", "--beta", "2", "--rounds", "2", "--sampling-rate", "1", "--task-option", "clients=6"]
DEADLINE_S = 90.0


class TopServer:
    """A `top-server --json` that is running."""

    def __init__(self, *arguments: str, run_dir: Path) -> None:
        command = [sys.executable, "-m", "top_server", "--json", "--listen", "127.0.0.1:0", "--run-dir", str(run_dir)]
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        self.events: list[dict[str, Any]] = []

    def until(self, kind: str) -> dict[str, Any]:
        """Reads events up to one of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1].get("event") == kind:
                return self.events[-1]
        raise AssertionError(
            f"no {kind}: {self.events[-3:]} {self.process.stderr.read() if self.process.stderr else ''}"
        )

    def end(self) -> tuple[int, str]:
        """Waits for its end; returns the exit code and what it said on stderr."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, err

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == kind]

    def final(self) -> Any:
        return load(self.run_dir / "models" / "final.safetensors")[0]


def node(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedgsp_node", "start", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, cwd=cwd
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


@contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens, nothing that was started goes on."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> TopServer:
    run = TopServer(*QUICK, "--local-nodes", "3", "--clients", "6", run_dir=tmp_path_factory.mktemp("local") / "run")
    with ended(run.process):
        assert run.end() == (0, ""), run.events[-3:]
    return run


def test_local_nodes_play_a_whole_run_and_leave_nobody_behind(local: TopServer) -> None:
    assert [row["round"] for row in local.of_kind("round_finished")] == [1, 2]
    assert len(local.of_kind("manager_spawned")) == 4  # two groups in round 1, four in round 2
    lines = (local.run_dir / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert not [child for child in psutil.Process().children(recursive=True) if child.is_running()]


def test_nodes_started_by_hand_give_the_same_bits_as_local_nodes(local: TopServer, tmp_path: Path) -> None:
    run = TopServer(*QUICK, "--min-nodes", "2", run_dir=tmp_path / "run")
    with ended(run.process):
        address = run.until("listening")["address"]
        join = ["--top-server", address, "--task", "digits", "--task-option", "clients=6"]
        first = node(*join, "--clients", "0-2", "--peer-listen", "127.0.0.1:0")
        second = node(*join, "--clients", "3-5")  # cannot be dialled: its weights go by way of a manager
        with ended(first, second):
            assert run.end()[0] == 0
            assert [end(first)[0], end(second)[0]] == [0, 0]
    assert_same_bits(run.final(), local.final())


def test_the_settings_that_a_run_leaves_behind_repeat_it(local: TopServer, tmp_path: Path) -> None:
    run = TopServer("--config", str(local.run_dir / "config.toml"), run_dir=tmp_path / "again")
    with ended(run.process):
        assert run.end()[0] == 0
    assert_same_bits(run.final(), local.final())


def test_a_grouping_service_in_another_process_gives_the_same_bits(local: TopServer, tmp_path: Path) -> None:
    service = subprocess.Popen(
        [sys.executable, "-m", "top_server", "grouping-service", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended(service):
        assert service.stderr is not None
        address = service.stderr.readline().split()[-1]
        arguments = ["--grouping", f"grpc://{address}", "--local-nodes", "1", "--clients", "6"]
        run = TopServer(*QUICK, *arguments, run_dir=tmp_path / "run")
        with ended(run.process):
            assert run.end()[0] == 0
    assert_same_bits(run.final(), local.final())


def test_a_node_with_another_model_or_the_same_clients_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    module = tmp_path / "other_shapes.py"
    module.write_text(
        "import torch\nfrom fedgsp_node.tasks.digits import Digits\n"
        "class Other(Digits):\n    def model(self):\n"
        "        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    run = TopServer(*QUICK, "--task", "other_shapes:Other", "--min-nodes", "2", run_dir=tmp_path / "run")
    with ended(run.process):
        join = ["--top-server", run.until("listening")["address"], "--task-option", "clients=6"]
        same = ["--task", "other_shapes:Other"]
        first = node(*join, *same, "--clients", "0-2", cwd=tmp_path)
        run.until("node_joined")
        wrong_task = node(*join, "--task", "digits", "--clients", "3-5")
        twice = node(*join, *same, "--clients", "2-5", cwd=tmp_path)
        with ended(first, wrong_task, twice):
            code, said = end(wrong_task)
            assert code == 5
            assert "--task other_shapes:Other" in said
            code, said = end(twice)
            assert code == 5
            assert "client 2 is already hosted" in said
            module.write_text(
                module.read_text().replace("torch.nn.Linear(64, 10)", "torch.nn.Linear(64, 10, bias=False)")
            )
            shapes = node(*join, *same, "--clients", "3-5", cwd=tmp_path)
            with ended(shapes):
                code, said = end(shapes)
                assert code == 5
                assert "tensors" in said
            module.write_text(module.read_text().replace(", bias=False", ""))
            last = node(*join, *same, "--clients", "3-5", cwd=tmp_path)
            with ended(last):
                assert run.end()[0] == 0
                assert end(last)[0] == 0
                assert end(first)[0] == 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('no scanner')", "no scanner"),
        ("def factory():\n    raise ValueError('no key')", "no key"),
        ("factory = 3", "factory"),
    ],
)
def test_a_task_that_raises_ends_a_local_run_with_its_reason(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    command = [sys.executable, "-m", "top_server", "--listen", "127.0.0.1:0", "--task", "broken:factory"]
    ended_run = subprocess.run(
        [*command, "--local-nodes", "1", "--run-dir", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended_run.returncode == 3
    assert said in ended_run.stderr
    assert "Traceback" not in ended_run.stderr


def test_a_node_without_a_top_server_tries_again_says_so_and_gives_up() -> None:
    lonely = node("--top-server", "127.0.0.1:9", "--task-option", "clients=2", "--connect-timeout", "1.5")
    with ended(lonely):
        code, said = end(lonely)
    assert code == 5
    assert said.count("next try in") >= 2
    assert "no top server at 127.0.0.1:9" in said.splitlines()[-1]


def test_a_run_that_is_asked_to_stop_ends_its_nodes_and_managers(tmp_path: Path) -> None:
    run = TopServer(*QUICK, "--rounds", "1000", "--local-nodes", "2", "--clients", "6", run_dir=tmp_path / "run")
    with ended(run.process):
        run.until("round_finished")
        children = psutil.Process(run.process.pid).children(recursive=True)
        assert len(children) >= 4
        run.process.terminate()
        assert run.end()[0] == 143
        _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, f"left behind: {alive}"


def test_nothing_is_left_when_the_top_server_is_killed(tmp_path: Path) -> None:
    run = TopServer(*QUICK, "--rounds", "1000", "--local-nodes", "2", "--clients", "6", run_dir=tmp_path / "run")
    with ended(run.process):
        run.until("round_finished")
        children = psutil.Process(run.process.pid).children(recursive=True)
        run.process.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, f"left behind: {alive}"


def test_a_killed_node_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    run = TopServer(*QUICK, "--rounds", "4", "--local-nodes", "3", "--clients", "6", run_dir=tmp_path / "run")
    with ended(run.process):
        run.until("round_finished")
        victim = next(
            child for child in psutil.Process(run.process.pid).children() if "node-1" in " ".join(child.cmdline())
        )
        victim.kill()
        code, _ = run.end()
    assert code == 0
    assert [row["round"] for row in run.of_kind("round_finished")][-1] == 4
    assert "node-1" in [event["node"] for event in run.of_kind("node_left")]
    assert run.of_kind("round_finished")[-1]["clients_trained"] == 4
