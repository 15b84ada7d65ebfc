"""A worker runs group managers for its top server: they end with the connection, and the next one has new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from fedgsp.connections.channels import Channels
from fedgsp.errors import PeerError
from fedgsp.messages import StopManager
from fedgsp.security import local_key
from fedgsp.security.access import AccessControl
from fedgsp.security.tickets import KEY_BYTES, Door, Verb
from fedgsp.settings.run import NodeSettings
from fedgsp_node.connections import hosting
from fedgsp_node.connections import managers as managers_module
from fedgsp_node.connections.hosting import HostedManagers
from tests.support.callers import OPEN
from tests.support.fuzzing import soon, until
from tests.support.serving import Served, serving
from top_server.managers import servicer as servicer_module
from top_server.managers.hosts import Hosts
from top_server.managers.servicer import HostingServicer
from top_server.nodes.callers import Placed

RUN = "run-1"
#: Of the processes of one user.
KEY = b"k" * KEY_BYTES
#: The start of a template and a manager, on a busy machine.
START_S = 60.0


async def greeted(_: str) -> None:
    """Whoever it is."""


@asynccontextmanager
async def hosted(
    folder: Path,
    servers_key: Callable[[], bytes] = bytes,
    key: bytes = b"",
    question: Callable[[], local_key.Question | None] | None = None,
) -> AsyncIterator[tuple[Hosts, HostedManagers, Channels, Served]]:
    """A top server with a key, and a worker that asks for a proof of its `key`, if it has one."""
    hosts = Hosts(lambda: 1, bytes(32), lambda _: b"", START_S)
    servicer = HostingServicer(hosts, Placed(RUN, {"node-0": None}), servers_key)
    access = AccessControl({Verb.JOIN: Door(key)}, False) if key else OPEN
    async with serving(servicer.add_to, access=access) as served, Channels() as channels:
        settings = NodeSettings(
            top_server=served.address, peer_listen="127.0.0.1:0", state_dir=folder, host_managers=True
        )
        asks = local_key.Question(served.address, key) if key else None
        managers = HostedManagers(settings, "node-0", channels, question or (lambda: asks))
        try:
            yield hosts, managers, channels, served
        finally:
            await managers.close()


async def test_managers_end_with_the_worker(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (hosts, managers, _, _):
        await managers.serve(RUN)
        launched = await hosts.launch("m0", greeted)
        assert psutil.pid_exists(launched.process.pid)
        await managers.close()
        assert not psutil.pid_exists(launched.process.pid)
        await until(lambda: bool(launched.process.over))


async def test_a_manager_that_is_asked_to_end_is_told_with_its_exit_code(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (hosts, managers, _, _):
        await managers.serve(RUN)
        launched = await hosts.launch("m0", greeted)
        await soon(launched.process.end(5.0))
        assert launched.process.over == "exit code 143"
        assert not psutil.pid_exists(launched.process.pid)


async def test_a_worker_whose_channel_is_closed_connects_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node drops the channel to its top server before it joins anew."""
    monkeypatch.setattr(managers_module, "FIRST_RETRY_S", 0.01)
    async with hosted(tmp_path) as (hosts, managers, channels, served):
        await managers.serve(RUN)
        first = await hosts.launch("m0", greeted)
        await channels.drop(served.address)
        await until(lambda: bool(first.process.over))
        assert (await hosts.launch("m1", greeted)).process.pid != first.process.pid
        assert not psutil.pid_exists(first.process.pid)


async def test_what_a_killed_worker_left_behind_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "managers" / "m7.pem"
    left.parent.mkdir()
    left.touch()
    async with hosted(tmp_path) as (hosts, managers, _, _):
        await managers.serve(RUN)
        await hosts.launch("m0", greeted)
        assert not left.exists()


async def test_keys_of_managers_are_not_written_through_a_link(tmp_path: Path) -> None:
    elsewhere, state = tmp_path / "elsewhere", tmp_path / "state"
    elsewhere.mkdir()
    state.mkdir()
    (elsewhere / "m7.pem").touch()
    (state / "managers").symlink_to(elsewhere)
    async with hosted(state) as (hosts, managers, _, _):
        await managers.serve(RUN)
        await hosts.launch("m0", greeted)
        assert not (state / "managers").is_symlink()
    assert [path.name for path in elsewhere.iterdir()] == ["m7.pem"]


async def test_a_manager_that_cannot_be_started_is_told_and_the_next_one_may_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosted(tmp_path) as (hosts, managers, _, _):
        with monkeypatch.context() as patch:
            patch.setattr(hosting, "COMMAND", ["no_such_module"])
            await managers.serve(RUN)
            with pytest.raises(PeerError, match="m0 did not start on the machine of node-0"):
                await hosts.launch("m0", greeted)
        assert (await hosts.launch("m1", greeted)).node == "node-0"


async def test_a_manager_has_a_name_that_can_be_one_of_a_file(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (hosts, managers, _, _):
        await managers.serve(RUN)
        with pytest.raises(PeerError, match="its name is none"):
            await hosts.launch("../m0", greeted)


async def test_another_run_has_other_managers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers_module, "FIRST_RETRY_S", 0.01)
    async with hosted(tmp_path) as (hosts, managers, _, _):
        await managers.serve(RUN)
        launched = await hosts.launch("m0", greeted)
        await managers.serve("run-2")  # this top server does not lead it, and refuses
        await until(lambda: bool(launched.process.over))
        assert not psutil.pid_exists(launched.process.pid)
        await managers.serve(RUN)
        assert (await hosts.launch("m1", greeted)).node == "node-0"


async def test_a_worker_starts_managers_for_a_top_server_of_its_user(tmp_path: Path) -> None:
    async with hosted(tmp_path, lambda: KEY, KEY) as (hosts, managers, _, _):
        await managers.serve(RUN)
        assert (await hosts.launch("m0", greeted)).node == "node-0"


@pytest.mark.parametrize("other", [b"", b"o" * KEY_BYTES])
async def test_a_worker_starts_no_manager_for_another_users_server(
    other: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has taken the port, and asks for managers at once."""
    caplog.set_level("INFO", "fedgsp_node.connections.hosting")
    async with hosted(tmp_path, lambda: other, KEY) as (hosts, managers, _, _):
        await managers.serve(RUN)
        launching = asyncio.ensure_future(hosts.launch("m0", greeted))
        await until(lambda: "is not a server of this user" in caplog.text)
        launching.cancel()
        with pytest.raises((asyncio.CancelledError, PeerError)):
            await launching
        assert not [child for child in psutil.Process().children(recursive=True) if "m0" in child.cmdline()]


async def test_a_worker_starts_no_manager_if_no_server_of_its_user_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The top server has ended and taken its key along, and another user has its port."""
    caplog.set_level("INFO", "fedgsp_node.connections.hosting")

    def nobody_there() -> local_key.Question | None:
        raise PeerError("no process of this user listens there")

    called: list[str] = []

    def stranger() -> bytes:
        called.append("here")
        return b""

    async with hosted(tmp_path, stranger, question=nobody_there) as (_, managers, _, _):
        await managers.serve(RUN)
        await until(lambda: "no process of this user listens there" in caplog.text)
        assert not called


async def test_a_worker_obeys_nobody_who_has_not_admitted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedgsp_node.connections.hosting")
    monkeypatch.setattr(servicer_module, "Admitted", lambda _: StopManager("m0", 0.0))
    async with hosted(tmp_path) as (_, managers, _, _):
        await managers.serve(RUN)
        await until(lambda: "before it admitted this worker" in caplog.text)


def test_the_pause_between_connections_grows_to_its_longest_and_stays_there() -> None:
    pauses = [managers_module.pause_s(tries) for tries in (0, 1, 2, 5, 1024, 1_000_000)]
    assert pauses == [0.2, 0.4, 0.8, 5.0, 5.0, 5.0]
