from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import Channels
from fedgsp.errors import PeerError, UserError
from fedgsp.messages import Failure, RelayMode, RunGroupRequest
from fedgsp.processes.children import Child, Template
from tests.support.callers import ISSUER
from tests.support.execute import python
from tests.support.ports import free_ports, range_of
from tests.support.recorder import Recorder
from top_server.managers import here
from top_server.managers.client import BrokenOff, ManagerClient
from top_server.managers.pool import Manager, ManagerPool, manager_pool

#: Asks a manager for what it can refuse at once: enough to know that somebody is there.
QUESTION = RunGroupRequest("run-1", 1, 0, "nonsense", (), None, "", RelayMode.AUTO, False, None, 1.0, 0)


@asynccontextmanager
async def pool(
    folder: Path, host: str = "127.0.0.1", ports: range | None = None
) -> AsyncIterator[tuple[ManagerPool, Recorder]]:
    recorder = Recorder()
    async with (
        Channels() as channels,
        here.launching_here(host, ports, folder, ["--insecure"], ISSUER.run_key) as launcher,
        manager_pool(launcher, channels, recorder, ISSUER) as managers,
    ):
        yield managers, recorder


async def answers(manager: Manager) -> bool:
    answer = await manager.client.run_group(QUESTION, lambda _: None)
    assert isinstance(answer, Failure)
    return "there is no program 'nonsense'" in answer.detail


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def process_of(manager: Manager) -> here.Here:
    assert isinstance(manager.process, here.Here)
    return manager.process


async def kill(manager: Manager) -> None:
    process_of(manager).child.send(signal.SIGKILL)
    await process_of(manager).child.wait()


@pytest.fixture
def port() -> range:
    """A range of one port, which is free."""
    with free_ports(1) as held:
        return range_of(held)


# --- real managers


async def test_managers_are_spawned_as_more_are_needed_and_reused(tmp_path: Path) -> None:
    async with pool(tmp_path) as (managers, recorder):
        (first,) = await managers.ensure(1)
        both = await managers.ensure(2)
        assert both[0] is first
        assert await managers.ensure(1) == [first]
        assert await managers.ensure(0) == []
        assert len({manager.name for manager in both} | {manager.address for manager in both}) == 4
        assert all([await answers(manager) for manager in both])
        spawned = [event["pid"] for event in recorder.of_kind("manager_spawned")]
        assert spawned == [manager.process.pid for manager in both]
    assert not any(runs(pid) for pid in spawned)


async def test_a_manager_that_starts_during_a_revocation_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    async with pool(tmp_path) as (managers, _):

        async def revoke(_: ManagerClient, enrolments: Sequence[str]) -> bool:
            told.append(list(enrolments))
            if told == [["urn:1"]]:  # while the new manager is told what it missed
                await managers.revoke(["urn:1", "urn:2"])
            return True

        monkeypatch.setattr(ManagerClient, "revoke", revoke)
        await managers.revoke(["urn:1"])
        await managers.ensure(1)
        assert told == [["urn:1"], ["urn:1", "urn:2"]]


async def test_groups_share_managers_where_more_would_gain_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "ENOUGH", 2)
    async with pool(tmp_path) as (managers, _):
        found = await managers.ensure(5)
        assert len({manager.name for manager in found}) == 2
        assert found[0] is found[2] is found[4]
        assert found[1] is found[3]


async def test_each_group_of_a_lost_manager_gets_one_of_its_own_and_spare_ones_end_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "ENOUGH", 1)
    async with pool(tmp_path) as (managers, recorder):
        (lost, _, same) = await managers.ensure(3)
        assert lost is same
        await kill(lost)
        others = await asyncio.gather(*(managers.replace(lost) for _ in range(3)))
        assert len({manager.name for manager in (lost, *others)}) == 4
        assert len(recorder.of_kind("manager_lost")) == 1
        (kept,) = set(await managers.ensure(3))
        spare = {manager for manager in others if manager is not kept}
        assert len(spare) == 2
        assert not kept.process.over
        assert all(manager.process.over for manager in spare)
        assert len(recorder.of_kind("manager_lost")) == 1  # the spare ones were not lost
        stopped = recorder.of_kind("manager_stopped")
        assert {event["manager"] for event in stopped} == {manager.name for manager in spare}


async def test_a_group_of_a_lost_manager_goes_to_another_one_if_there_is_no_further_port(tmp_path: Path) -> None:
    with free_ports(2) as held:
        ports = range_of(held)
    async with pool(tmp_path, ports=ports) as (managers, _):
        lost, other = await managers.ensure(2)
        await kill(lost)
        found = await asyncio.gather(*(managers.replace(lost) for _ in range(3)))
        assert len(set(found)) == 2
        assert other in found


async def test_a_frozen_manager_keeps_its_port_until_it_has_ended(tmp_path: Path, port: range) -> None:
    """Each of its groups asks for another manager, and a revocation finds it, all at the same time."""
    async with pool(tmp_path, ports=port) as (managers, recorder):
        (lost,) = await managers.ensure(1)
        process_of(lost).child.send(signal.SIGSTOP)
        found = asyncio.gather(*(managers.replace(lost) for _ in range(3)))
        await managers.discard(lost)
        (other,) = set(await found)
        assert await answers(other)
        assert process_of(other).port == process_of(lost).port
        assert len(recorder.of_kind("manager_lost")) == 1
        await managers.discard(lost)  # a group that learns of it late
        assert await answers(other), "its channel was dropped with that of the lost one"


async def test_who_dials_a_dead_manager_does_not_keep_the_next_one_on_its_port_out_of_reach(
    tmp_path: Path, port: range
) -> None:
    async with pool(tmp_path, ports=port) as (managers, _):
        (first,) = await managers.ensure(1)
        await kill(first)
        await managers.discard(first)
        assert not await first.client.answers()  # as of a group whose result was there
        (second,) = await managers.ensure(1)
        assert second.address == first.address
        assert await second.client.answers()


async def test_a_group_of_a_lost_manager_goes_to_another_one_if_none_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(tmp_path) as (managers, _):
        lost, other, dead = await managers.ensure(3)
        await asyncio.gather(kill(lost), kill(dead))

        async def refuse(*_: object) -> Child:
            raise PeerError("no memory is left", "wait")

        monkeypatch.setattr(Template, "spawn", refuse)
        assert await managers.replace(lost) is other
        await kill(other)
        with pytest.raises(PeerError, match="no memory"):
            await managers.replace(other)


async def test_a_group_that_breaks_off_goes_to_another_manager_that_runs(tmp_path: Path) -> None:
    async with pool(tmp_path) as (managers, _):
        (only,) = await managers.ensure(1)
        assert managers.other_than(only) is only
        first, second, dead = await managers.ensure(3)
        await kill(dead)
        assert [managers.other_than(first) for _ in range(3)] == [second] * 3


async def test_a_manager_that_is_discarded_while_others_start_is_replaced(tmp_path: Path) -> None:
    async with pool(tmp_path) as (managers, recorder):
        (first,) = await managers.ensure(1)
        starting = asyncio.create_task(managers.ensure(2))
        await recorder.until("managers_starting")
        await managers.discard(first)
        found = await starting
        assert len({manager.name for manager in found} - {first.name}) == 2


async def test_a_dead_manager_is_replaced(tmp_path: Path) -> None:
    async with pool(tmp_path) as (managers, recorder):
        (first,) = await managers.ensure(1)
        await kill(first)
        (second,) = await managers.ensure(1)
        assert second.name != first.name
        assert await answers(second)
        lost = {"event": "manager_lost", "manager": first.name, "reason": f"exit code {-signal.SIGKILL}"}
        assert recorder.of_kind("manager_lost") == [lost]


async def test_managers_whose_template_is_killed_are_replaced(tmp_path: Path) -> None:
    async with pool(tmp_path) as (managers, recorder):
        (first,) = await managers.ensure(1)
        template = psutil.Process(first.process.pid).parent()
        assert template is not None
        assert "fedgsp.processes.template" in template.cmdline()
        template.kill()
        await process_of(first).child.wait()
        (second,) = await managers.ensure(1)
        assert second.name != first.name
        assert await answers(second)
        assert [event["manager"] for event in recorder.of_kind("manager_lost")] == [first.name]


async def test_the_next_manager_on_a_port_is_reached_at_once(tmp_path: Path, port: range) -> None:
    """The channel to the dead one has already failed, and would wait before it tries again."""
    async with pool(tmp_path, ports=port) as (managers, _):
        (first,) = await managers.ensure(1)
        await kill(first)
        for _ in range(5):
            ended = await first.client.run_group(QUESTION, lambda _: None)
            assert isinstance(ended, BrokenOff)
            assert ended.lost
        (second,) = await managers.ensure(1)
        assert process_of(second).port == process_of(first).port
        assert await answers(second)


async def test_a_port_that_somebody_else_has_is_passed_over(tmp_path: Path) -> None:
    with free_ports(2) as held:
        ports = range_of(held)
        taken, free = held
        taken.listen()
        free.close()
        async with pool(tmp_path, ports=ports) as (managers, recorder):
            (manager,) = await managers.ensure(1)
            assert process_of(manager).port == ports[1]
            assert await answers(manager)
            assert len(recorder.of_kind("manager_spawned")) == 1
            with pytest.raises(PeerError, match="did not start"):  # the other port is still taken
                await managers.ensure(2)
            assert await managers.ensure(1) == [manager]


async def test_a_manager_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    async with pool(tmp_path, host="192.0.2.1") as (managers, recorder):  # no host of ours
        with pytest.raises(PeerError, match=r"group manager m0 did not start \(exit code 2\)") as caught:
            await managers.ensure(1)
    assert "cannot listen on 192.0.2.1:0" in caught.value.remedy
    assert recorder.of_kind("manager_spawned") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "*"])
async def test_managers_on_every_interface_are_reached_on_this_machine(tmp_path: Path, host: str) -> None:
    async with pool(tmp_path, host=host) as (managers, _):
        (manager,) = await managers.ensure(1)
        assert split_address(manager.address) == (host, process_of(manager).port)
        assert await answers(manager)


# --- stand-ins that start badly


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the pool run this Python code in place of every manager, which then finds its name in argv[2]."""

    def use(script: str) -> None:
        monkeypatch.setattr(here, "COMMAND", python(script))
        monkeypatch.setattr(here, "IMPORTS", [])

    return use


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """Every process that a pool starts."""
    processes: list[Child] = []
    spawn = Template.spawn

    async def noted(*arguments: Any) -> Child:
        processes.append(await spawn(*arguments))
        return processes[-1]

    monkeypatch.setattr(Template, "spawn", noted)
    return processes


async def test_a_manager_that_says_nonsense_is_stopped(
    tmp_path: Path, command: Callable[[str], None], started: list[Child]
) -> None:
    command("import sys; print('hello', flush=True); sys.stdin.read()")
    async with pool(tmp_path) as (managers, _):
        with pytest.raises(UserError, match="'hello' is not an address"):
            await managers.ensure(1)
        assert [process.returncode for process in started] == [-signal.SIGTERM]


async def test_of_managers_that_start_together_those_that_run_stay_in_the_pool(
    tmp_path: Path, command: Callable[[str], None], started: list[Child]
) -> None:
    command(
        "import sys\n"
        "if sys.argv[2] == 'm0': sys.exit(9)\n"
        "print(f'127.0.0.1:{7000 + int(sys.argv[2][1:])}', flush=True); sys.stdin.read()"
    )
    async with pool(tmp_path) as (managers, recorder):
        with pytest.raises(PeerError, match="m0 did not start"):
            await managers.ensure(3)
        assert {event["manager"] for event in recorder.of_kind("manager_spawned")} == {"m1", "m2"}
        assert {manager.name for manager in await managers.ensure(2)} == {"m1", "m2"}
    assert len(started) == 3
    assert not any(runs(process.pid) for process in started)


async def test_a_start_that_is_called_off_leaves_no_process_behind(
    tmp_path: Path, command: Callable[[str], None], started: list[Child]
) -> None:
    command("import sys\nif sys.argv[2] == 'm0': print('127.0.0.1:7000', flush=True)\nsys.stdin.read()")
    async with pool(tmp_path) as (managers, recorder):
        task = asyncio.create_task(managers.ensure(2))
        await recorder.until("manager_spawned")  # m0; m1 never is ready
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert started
    assert not any(runs(process.pid) for process in started)


async def test_every_port_of_the_range_is_tried(
    tmp_path: Path, command: Callable[[str], None], started: list[Child]
) -> None:
    command("import sys; sys.stderr.write(sys.argv[4] + ' is taken\\n'); sys.exit(2)")
    async with pool(tmp_path, ports=range(7000, 7003)) as (managers, _):
        with pytest.raises(PeerError, match="did not start") as caught:
            await managers.ensure(1)
    assert len(started) == 3
    assert "127.0.0.1:7000 is taken | 127.0.0.1:7001 is taken | 127.0.0.1:7002 is taken" in caught.value.remedy
