from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import PeerError, RunError, TaskError
from fedgsp.options import parse_clients
from fedgsp.settings.run import RunConfig
from tests.support.events import some
from tests.support.execute import python
from top_server.nodes import local
from top_server.nodes.local import blocks, commands, imports, running
from top_server.record.directory import RunDirectory
from top_server.record.events.processes import NodeJoined
from top_server.record.journal import Journal

#: Connects to the port it is given, says hello, and stays until its lifeline or this process ends it.
STAYS = "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); s.send(b'!'); sys.stdin.read()"
#: Connects, and fails as soon as it is sent something.
LEAVES = "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); s.recv(1); sys.exit(3)"
FAILS = "import sys; print('first'); print('error: no such thing', file=sys.stderr); sys.exit({code})"


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins of nodes need no imports."""
    monkeypatch.setattr(local, "IMPORTS", [])


@given(st.data())
def test_clients_are_dealt_evenly_in_order(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 400))
    dealt = blocks(clients, data.draw(st.integers(1, clients)))
    assert [client for block in dealt for client in block] == list(range(clients))
    sizes = [len(block) for block in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_each_node_is_told_its_clients_and_the_task() -> None:
    config = RunConfig(local_nodes=2, clients=5, threads=3, task="mnist", task_option={"a": "b=c", "d": ""})
    first, second = commands(config, "0.0.0.0:7000")
    assert first[:2] == ["fedgsp_node", "start"]

    def value(command: list[str], flag: str) -> str:
        return command[command.index(flag) + 1]

    assert [parse_clients(value(command, "--clients")) for command in (first, second)] == [(0, 1), (2, 3, 4)]
    assert [value(command, "--name") for command in (first, second)] == ["node-0", "node-1"]
    assert value(first, "--top-server") == "127.0.0.1:7000"
    assert value(first, "--threads") == "3"
    assert value(first, "--task") == "mnist"
    assert [first[i + 1] for i, word in enumerate(first) if word == "--task-option"] == ["a=b=c", "d="]


def test_nodes_share_what_torch_imports_for_an_optimiser_and_take_gpus_in_turn() -> None:
    assert imports(RunConfig()) == imports(RunConfig(optimizer="sgd")) == []
    assert imports(RunConfig(optimizer="adam")) == ["torch._dynamo"]
    assert imports(RunConfig(optimizer="sgd", optimizer_option={"momentum": "0.9"})) == ["torch._dynamo"]
    for device, told in (("auto", ["auto:0", "auto:1"]), ("cuda:1", ["cuda:1", "cuda:1"])):
        found = commands(RunConfig(local_nodes=2, clients=2, device=device), "127.0.0.1:7000")
        assert [command[command.index("--device") + 1] for command in found] == told


def test_each_node_is_given_the_files_of_the_top_server(tmp_path: Path) -> None:
    paths: dict[str, Any] = {f"tls_{name}": tmp_path / name for name in ("ca", "cert", "key")}
    (command,) = commands(RunConfig(local_nodes=1, **paths), "127.0.0.1:7000")
    for name in ("ca", "cert", "key"):
        assert command[command.index(f"--tls-{name}") + 1] == str(tmp_path / name)


def test_each_node_waits_for_a_silent_peer_as_long_as_the_top_server() -> None:
    (command,) = commands(RunConfig(local_nodes=1, lost_after=12.5), "127.0.0.1:7000")
    assert command[command.index("--lost-after") + 1] == "12.5"


def test_a_single_node_hosts_all_clients_of_the_task() -> None:
    (command,) = commands(RunConfig(local_nodes=1), "127.0.0.1:7000")
    assert "--clients" not in command


def test_no_local_nodes_are_no_commands() -> None:
    assert commands(RunConfig(), "127.0.0.1:7000") == []


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def meeting() -> AsyncIterator[tuple[int, asyncio.Queue[Connection]]]:
    """A port, and the connections made to it."""
    there: asyncio.Queue[Connection] = asyncio.Queue()
    writers = []

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        there.put_nowait((reader, writer))

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1], there
        finally:
            for writer in writers:
                writer.close()
                await writer.wait_closed()


async def test_nodes_live_as_long_as_the_body(tmp_path: Path) -> None:
    with Journal(RunDirectory(tmp_path)) as journal:
        async with meeting() as (port, there):
            command = python(STAYS.format(port=port))
            async with running([command, command], tmp_path, journal):
                readers = [(await there.get())[0], (await there.get())[0]]
                assert [await reader.readexactly(1) for reader in readers] == [b"!", b"!"]
            assert [await reader.read() for reader in readers] == [b"", b""]
    assert logs_in(tmp_path) == ["node-0.log", "node-1.log"]


@pytest.mark.parametrize(("code", "kind"), [(3, TaskError), (5, PeerError), (1, PeerError)])
async def test_a_node_that_ends_before_it_joined_ends_the_run(
    tmp_path: Path, code: int, kind: type[Exception]
) -> None:
    reason = f"local node-0 ended with exit code {code}.*error: no such thing"
    with Journal(RunDirectory(tmp_path)) as journal, pytest.raises(kind, match=reason):
        async with running([python(FAILS.format(code=code))], tmp_path, journal):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


def logs_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("node-*.log"))


class Heard(logging.Handler):
    """The first message of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.message: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        self.message.set_result(record.getMessage())


async def test_a_node_that_ends_after_it_joined_is_only_lost(tmp_path: Path) -> None:
    logger, heard = logging.getLogger("top_server.nodes.local"), Heard()
    logger.addHandler(heard)
    with Journal(RunDirectory(tmp_path)) as journal:
        stays = python("import sys; sys.stdin.read()")
        async with meeting() as (port, there), running([python(LEAVES.format(port=port)), stays], tmp_path, journal):
            _, writer = await there.get()
            journal.record(some(NodeJoined, node="node-0", clients=3))
            writer.write(b"!")
            assert (await heard.message).startswith("local node-0 ended with exit code 3")
    logger.removeHandler(heard)


async def played_until_both_have_left(tmp_path: Path, others: tuple[str, ...] = (), over: bool = False) -> None:
    """Two nodes that join and end one after the other; returns if the run goes on without them."""
    logger = logging.getLogger("top_server.nodes.local")
    with Journal(RunDirectory(tmp_path)) as journal:
        async with meeting() as (port, there):
            command = python(LEAVES.format(port=port))
            async with running([command, command], tmp_path, journal) as nodes_may_end:
                met = [await there.get() for _ in range(2)]
                for name in ("node-0", "node-1", *others):
                    journal.record(some(NodeJoined, node=name, clients=3))
                if over:
                    nodes_may_end()
                for _, writer in met:
                    heard = Heard()
                    logger.addHandler(heard)
                    try:
                        writer.write(b"!")
                        await heard.message
                    finally:
                        logger.removeHandler(heard)
                await asyncio.sleep(0)  # a cancellation would come here


async def test_when_all_nodes_have_ended_the_run_ends_with_the_reason(tmp_path: Path) -> None:
    reason = r"no node is left: local node-\d ended with exit code 3; its log, .*node-\d.log"
    with pytest.raises(RunError, match=reason):
        await played_until_both_have_left(tmp_path)


async def test_a_run_goes_on_while_others_nodes_may_come_back_or_its_own_are_to_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    await played_until_both_have_left(tmp_path / "a", others=("hospital",))
    (tmp_path / "b").mkdir()
    await played_until_both_have_left(tmp_path / "b", over=True)


async def test_the_end_of_the_body_by_others_is_passed_on(tmp_path: Path) -> None:
    with Journal(RunDirectory(tmp_path)) as journal:

        async def body() -> None:
            async with running([python("import sys; sys.stdin.read()")], tmp_path, journal):
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
