"""The commands as a person types them: real processes on loopback."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import psutil
import pytest
import pytest_asyncio

from fedgsp.errors import PeerError
from fedgsp.processes.lifecycle import python_module
from fedgsp.settings.run import NodeSettings
from fedgsp_node import server as node_server
from tests.support.processes import Process, assert_gone, node, running, top_server
from tests.support.reference import assert_same_bits
from top_server.record.model_files import load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

#: A loaded machine may take long to import torch in several processes at once.
DEADLINE_S = 120.0
OPTIONS = ["--task-option", "clients=6"]
QUICK = ["--growth", "log", "--beta", "2", "--rounds", "2", "--sampling-rate", "1", *OPTIONS]


def final(folder: Path) -> Any:
    return load(folder / "run" / "models" / "final.safetensors")[0]


async def finished(process: Process) -> None:
    assert await process.ended(DEADLINE_S) == 0, process.errors


def words(process: psutil.Process) -> list[str]:
    """The words of a command line; of a forked process it is one text."""
    return " ".join(process.cmdline()).split()


def of_kind(process: Process, kind: str) -> list[dict[str, Any]]:
    return [event for event in process.events if event["event"] == kind]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three local nodes, and the folder that holds what it left behind."""
    folder = tmp_path_factory.mktemp("local")
    async with top_server(folder, *QUICK, "--local-nodes", "3", "--clients", "6") as run:
        await finished(run)
        assert run.errors == ""
        assert len(of_kind(run, "manager_spawned")) == 4  # two groups in round 1, four in round 2
    return folder


async def test_local_nodes_play_a_whole_run(local: Path) -> None:
    history = [json.loads(line) for line in (local / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in history] == [1, 2]
    assert [row["clients_trained"] for row in history] == [6, 4]
    assert sorted(path.name for path in (local / "run" / "logs").iterdir())[-3:] == [f"node-{i}.log" for i in range(3)]


async def test_nodes_started_by_hand_give_the_same_bits_as_local_nodes(local: Path, tmp_path: Path) -> None:
    async with top_server(tmp_path, *QUICK, "--min-nodes", "2") as run:
        address = (await run.event("listening", DEADLINE_S))["address"]
        dialled = ["--clients", "0-2", "--peer-listen", "127.0.0.1:0"]
        async with (
            node(tmp_path, address, *OPTIONS, *dialled, name="a") as first,
            # cannot be dialled: its weights go by way of a manager
            node(tmp_path, address, *OPTIONS, "--clients", "3-5", name="b") as second,
        ):
            for process in (run, first, second):
                await finished(process)
    for said in ("task digits is ready", "joined run", " trained on ", "left run"):
        assert any(said in line for line in first.lines), said
    assert_same_bits(final(tmp_path), final(local))


async def test_the_settings_that_a_run_leaves_behind_repeat_it_also_with_a_grouping_service(
    local: Path, tmp_path: Path
) -> None:
    command = [*python_module("top_server"), "grouping-service", "--listen", "127.0.0.1:0"]
    async with running(command, tmp_path / "service.log") as service:
        address = (await service.line("listening on", DEADLINE_S)).split()[-1]
        again = ["--config", str(local / "run" / "config.toml"), "--grouping", f"grpc://{address}"]
        async with top_server(tmp_path, *again, "--local-nodes", "1") as run:
            await finished(run)
    assert_same_bits(final(tmp_path), final(local))


async def test_a_node_that_does_not_fit_is_refused_with_the_remedy_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\nfrom fedgsp_node.tasks.digits import Digits\n"
        "class Flat(Digits):\n"
        "    def __init__(self, clients: int, bias: bool = True):\n"
        "        super().__init__(clients)\n        self.bias = bias\n"
        "    def model(self):\n"
        "        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10, bias=self.bias))\n"
    )
    own = [*OPTIONS, "--task", "own:Flat"]
    async with top_server(tmp_path, *QUICK, "--task", "own:Flat", "--min-nodes", "2") as run:
        address = (await run.event("listening", DEADLINE_S))["address"]
        async with node(tmp_path, address, *own, "--clients", "0-2", name="a") as first:
            await run.event("node_joined", DEADLINE_S)
            biased = [*own, "--task-option", "bias=no", "--clients", "3-5"]
            async with node(tmp_path, address, *biased, name="biased") as other:
                assert await other.ended(DEADLINE_S) == 5
                assert "its task has bias=False, and the run has another value" in other.errors
                assert "Traceback" not in other.errors
            async with node(tmp_path, address, *own, "--clients", "3-5", name="b") as second:
                for process in (run, first, second):
                    await finished(process)


async def test_a_node_without_a_top_server_tries_again_says_so_and_gives_up(tmp_path: Path) -> None:
    async with node(tmp_path, "127.0.0.1:9", "--task-option", "clients=2", "--connect-timeout", "1.5") as lonely:
        assert await lonely.ended(DEADLINE_S) == 5
    assert sum("next try in" in line for line in lonely.lines) >= 2
    assert "no top server at 127.0.0.1:9" in lonely.errors


@pytest.mark.parametrize(("signal", "code"), [(SIGTERM, 143), pytest.param(SIGKILL, -9, marks=pytest.mark.slow)])
async def test_nothing_is_left_of_a_run_that_is_stopped_or_killed(tmp_path: Path, signal: Any, code: int) -> None:
    flags = ["--rounds", "1000", "--local-nodes", "2", "--clients", "6"]
    async with top_server(tmp_path, *QUICK, *flags) as run:
        await run.event("round_finished", DEADLINE_S)
        family = run.family()
        assert len(family) >= 5  # itself, two nodes, two managers
        run.send(signal)
        assert await run.ended(DEADLINE_S) == code
        await assert_gone(family)
    if signal == SIGTERM:
        assert run.errors.splitlines()[-1] == f"to continue this run: top-server --resume {tmp_path / 'run'}"
        assert not of_kind(run, "node_refused")


@pytest.mark.slow
async def test_a_killed_node_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    flags = ["--rounds", "4", "--local-nodes", "3", "--clients", "6"]
    async with top_server(tmp_path, *QUICK, *flags) as run:
        await run.event("round_finished", DEADLINE_S)
        children = psutil.Process(run.pid).children(recursive=True)
        next(child for child in children if "node-1" in words(child)).kill()
        await finished(run)
        assert (await run.event("node_left"))["node"] == "node-1"
        assert of_kind(run, "round_finished")[-1]["clients_trained"] == 4


async def test_a_run_whose_own_nodes_have_all_died_ends_at_once(tmp_path: Path) -> None:
    flags = ["--rounds", "1000", "--local-nodes", "2", "--clients", "6", "--join-timeout", "600"]
    async with top_server(tmp_path, *QUICK, *flags) as run:
        await run.event("round_finished", DEADLINE_S)
        for child in psutil.Process(run.pid).children(recursive=True):
            if "fedgsp_node" in words(child):
                child.kill()
        assert await run.ended(DEADLINE_S) == 6
    assert "no node is left: local node-" in run.errors
    assert "ended with exit code -9; its log, " in run.errors
    assert "Traceback" not in run.errors


async def test_a_node_whose_task_never_returns_still_ends_when_asked(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import logging, time\ndef factory():\n    logging.info('loading')\n    time.sleep(600)\n"
    )
    # The command `fedgsp-node`, except that the task and its thread get less time to end.
    script = "from fedgsp.processes import lifecycle; lifecycle.STOP_GRACE_S = 0.2\n"
    script += "from fedgsp_node import slot; slot.STOP_TIMEOUT_S = 0.2\n"
    script += "from fedgsp_node.cli import main; main()"
    start = ["start", "--json", "--top-server", "127.0.0.1:9", "--task", "stuck:factory"]
    command = [sys.executable, "-c", script, *start]
    async with running(command, tmp_path / "stuck.log") as stuck:
        await stuck.line("loading", DEADLINE_S)
        stuck.send(SIGTERM)
        assert await stuck.ended(DEADLINE_S) == 143


async def test_a_node_gives_up_on_a_server_that_says_nothing() -> None:
    # Connections end up in its backlog: taken, and never answered.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        lonely = NodeSettings(insecure=True, top_server=address, task_option={"clients": "2"}, connect_timeout=1.0)
        with pytest.raises(PeerError, match=f"no top server at {address} .*says nothing"):
            await node_server.run(lonely)
