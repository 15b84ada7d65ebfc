from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgsp.errors import PeerError, RunError, TaskError
from fedgsp.processes import children
from fedgsp.settings.managers import KEYS
from fedgsp.settings.run import NodeSettings
from tests.support.events import some
from tests.support.execute import python
from tests.support.fuzzing import until
from top_server.placing import PLACES
from top_server.placing import running as running_module
from top_server.placing.base import About, Ended, Worker
from top_server.placing.local import Local
from top_server.record.directory import RunDirectory
from top_server.record.events.base import Event
from top_server.record.events.processes import NodeJoined
from top_server.record.events.run import RunStarted
from top_server.record.journal import Journal, Line

#: Connects to the port it is given, says hello, and stays until its lifeline or this process ends it.
STAYS = "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); s.send(b'!'); sys.stdin.read()"
#: Connects, and fails as soon as it is sent something.
LEAVES = "import socket, sys; s = socket.create_connection(('127.0.0.1', {port})); s.recv(1); sys.exit({code})"
FAILS = "import sys; print('first'); print('error: no such thing', file=sys.stderr); sys.exit({code})"
LOGGER = "top_server.placing.running"


@dataclass(frozen=True)
class StandIn(Worker):
    """A worker that runs another program, without the imports of nodes."""

    command: Sequence[str] = ()

    def arguments(self, host: str, folder: Path) -> list[str]:
        return list(self.command)


def running(
    commands: Sequence[Sequence[str]], folder: Path, journal: Journal
) -> AbstractAsyncContextManager[Callable[[], None]]:
    """These programs as the workers node-0, node-1, ... of place local."""

    def made(tell: Callable[[Ended], None]) -> Local:
        return Local(None, About("run", folder / "place", tell))

    workers = [
        StandIn(f"node-{index}", NodeSettings(), folder / f"node-{index}.log", command=command)
        for index, command in enumerate(commands)
    ]
    return running_module.running(PLACES["local"], made, workers, journal)


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


@pytest.mark.parametrize(("code", "kind"), [(3, TaskError), (5, PeerError), (1, PeerError), (0, PeerError)])
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


def next_end(journal: Journal) -> asyncio.Future[Line]:
    """The next end of a worker that is recorded."""
    found: asyncio.Future[Line] = asyncio.get_running_loop().create_future()

    def notice(line: Line) -> None:
        if line["event"] == "worker_ended" and not found.done():
            found.set_result(line)

    journal.subscribe(notice)
    return found


@pytest.mark.parametrize("event", [some(NodeJoined, node="node-0", clients=3), some(RunStarted)])
async def test_a_node_that_ends_after_it_joined_or_after_the_run_has_begun_is_only_lost(
    tmp_path: Path, event: Event
) -> None:
    with Journal(RunDirectory(tmp_path)) as journal:
        stays = python("import sys; sys.stdin.read()")
        async with meeting() as (port, there):
            leaves = python(LEAVES.format(port=port, code=3))
            async with running([leaves, stays], tmp_path, journal):
                _, writer = await there.get()
                journal.record(event)
                end = next_end(journal)
                writer.write(b"!")
                told = await end
    assert (told["node"], told["code"]) == ("node-0", 3)
    assert told["reason"].startswith("local node-0 ended with exit code 3; its log, ")


async def played_until_both_have_left(
    tmp_path: Path, others: tuple[str, ...] = (), over: bool = False, code: int = 3
) -> None:
    """Two nodes that join and end one after the other; returns if the run goes on without them."""
    with Journal(RunDirectory(tmp_path)) as journal:
        async with meeting() as (port, there):
            command = python(LEAVES.format(port=port, code=code))
            async with running([command, command], tmp_path, journal) as nodes_may_end:
                met = [await there.get() for _ in range(2)]
                for name in ("node-0", "node-1", *others):
                    journal.record(some(NodeJoined, node=name, clients=3))
                if over:
                    nodes_may_end()
                for _, writer in met:
                    end = next_end(journal)
                    writer.write(b"!")
                    await end
                await asyncio.sleep(0)  # a cancellation would come here


@pytest.mark.parametrize("code", [0, 3])
async def test_when_all_nodes_have_ended_the_run_ends_with_the_reason(tmp_path: Path, code: int) -> None:
    """A task that ends its process says exit code 0, which is no order of the run."""
    reason = rf"no node is left: local node-\d ended with exit code {code}; its log, .*node-\d.log"
    with pytest.raises(RunError, match=reason):
        await played_until_both_have_left(tmp_path, code=code)


async def test_a_run_goes_on_while_others_nodes_may_come_back_or_its_own_are_to_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    await played_until_both_have_left(tmp_path / "a", others=("hospital",))
    (tmp_path / "b").mkdir()
    await played_until_both_have_left(tmp_path / "b", over=True)


async def test_nodes_that_end_as_they_were_asked_to_are_no_trouble(tmp_path: Path) -> None:
    class Quiet(Local):
        async def start(self, workers: Sequence[Worker]) -> None:
            """Starts nothing."""

    tells: list[Callable[[Ended], None]] = []

    def made(tell: Callable[[Ended], None]) -> Quiet:
        tells.append(tell)
        return Quiet(None, About("run", tmp_path, tell))

    worker = StandIn("node-0", NodeSettings(), tmp_path / "node-0.log")
    with Journal(RunDirectory(tmp_path)) as journal:
        async with running_module.running(PLACES["local"], made, [worker], journal) as nodes_may_end:
            end = next_end(journal)
            nodes_may_end()
            tells[0](Ended("node-0", 0))
            assert not end.done()


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


async def test_workers_that_are_stopped_by_name_end_and_the_others_stay(tmp_path: Path) -> None:
    told: list[Ended] = []
    place = Local(None, About("run", tmp_path / "place", told.append))
    async with meeting() as (port, there):
        command = python(STAYS.format(port=port))
        one, other = (
            StandIn(name, NodeSettings(), tmp_path / f"{name}.log", command=command) for name in ("one", "other")
        )
        await place.start([one])
        first, _ = await there.get()
        await place.start([other])
        second, _ = await there.get()
        await place.stop(["one", "nobody"])
        assert await first.read() == b"!"
        assert await second.readexactly(1) == b"!"
        await place.stop()
        assert await second.read() == b""
    assert told == []


@pytest.mark.parametrize("chosen", [None, "7"])
async def test_sets_of_texts_have_the_same_order_in_each_run(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYTHONHASHSEED", chosen)
    code = "import os; print(os.environ['PYTHONHASHSEED'], *{str(number) for number in range(50)})"
    orders = []
    for run in ("first", "second"):
        log, told = tmp_path / run, asyncio.Queue[Ended]()
        place = Local(None, About(run, tmp_path / "place", told.put_nowait))
        await place.start([StandIn("node-0", NodeSettings(), log, command=python(code))])
        assert (await told.get()).code == 0
        await place.stop()
        orders.append(log.read_text().split())
    assert orders[0] == orders[1]
    assert orders[0][0] == (chosen or "0")


async def test_a_worker_that_is_to_come_back_is_not_lost(tmp_path: Path) -> None:
    class Coming(Local):
        async def start(self, workers: Sequence[Worker]) -> None:
            for worker in workers:
                self.about.tell(Ended(worker.name, None, "its machine is needed by others", returns=True))

    def made(tell: Callable[[Ended], None]) -> Coming:
        return Coming(None, About("run", tmp_path, tell))

    heard = Heard()
    logging.getLogger(LOGGER).addHandler(heard)
    worker = StandIn("node-0", NodeSettings(), tmp_path / "node-0.log")
    with Journal(RunDirectory(tmp_path)) as journal:
        async with running_module.running(PLACES["local"], made, [worker], journal):
            assert await heard.message == "local node-0 ended: its machine is needed by others; it is to come back"
            await asyncio.sleep(0)  # a cancellation would come here
    logging.getLogger(LOGGER).removeHandler(heard)


async def test_a_worker_that_has_to_be_killed_leaves_no_keys_of_managers_behind(tmp_path: Path) -> None:
    """It ignores SIGTERM and the end of its lifeline, as a process does whose machine is far too busy."""
    script = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); open('{}', 'w').close(); time.sleep(60)"
    said, keys = tmp_path / "said", tmp_path / "state" / KEYS
    keys.mkdir(parents=True)
    (keys / "m0.pem").write_text("key")
    worker = StandIn(
        "node-0",
        NodeSettings(state_dir=keys.parent),
        tmp_path / "log",
        command=python(script.format(said)),
    )
    place = Local(None, About("run", tmp_path / "place", lambda _: None))
    await place.start([worker])
    await until(said.exists)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("top_server.placing.local.stop", functools.partial(children.stop, grace_s=0.05))
        await place.stop()
    assert not keys.exists()
    assert keys.parent.exists()


@pytest.mark.parametrize("at", ["asyncio.create_subprocess_exec", "socket.socketpair", "asyncio.open_unix_connection"])
async def test_a_machine_without_room_for_a_worker_ends_the_start_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(at, lacking)
    told: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
    placing = Local(None, About("run", tmp_path / "place", told.set_result))
    await placing.start([StandIn("node-0", NodeSettings(), tmp_path / "node-0.log", command=["tests"])])
    ended = await asyncio.wait_for(told, 30)
    monkeypatch.undo()
    await placing.stop()
    assert ended.code is None
    assert "cannot be started: Resource temporarily unavailable" in ended.reason


async def test_a_worker_whose_secrets_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("no folder")
    told: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
    placing = Local(None, About("run", tmp_path / "place", told.set_result))
    await placing.start(
        [StandIn("node-0", NodeSettings(), tmp_path / "node-0.log", secrets={"key": b""}, command=["tests"])]
    )
    ended = await asyncio.wait_for(told, 30)
    await placing.stop()
    assert "cannot be written" in ended.reason
