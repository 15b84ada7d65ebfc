"""A second machine uses a copy of the folder with the identity of a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fedgsp import wire
from fedgsp.identity import node
from fedgsp.messages import Failure, TopServerMessage, Welcome
from fedgsp.security.access import Caller
from tests.support.federations import Scene, dialled, end_of, federated, joins
from tests.support.recorder import Recorder
from top_server.nodes.replacing import ANEW, Replacing
from top_server.view.lines import describe


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with federated(tmp_path / "federation", monkeypatch) as found:
        yield found


async def test_a_copy_of_a_living_node_raises_an_alarm_that_names_both_addresses(scene: Scene) -> None:
    own = await scene.enrol("hospital-a")
    async with dialled(own, scene.address) as of_owner, dialled(own, scene.address) as of_thief:
        older, _ = await joins(of_owner, "hospital-a", (0, 1), process="owner")
        newer, welcome = await joins(of_thief, "hospital-a", (0, 1), process="thief")
        assert isinstance(welcome, Welcome)
        told = wire.decode(TopServerMessage, await older.read()).kind
        assert isinstance(told, Failure)  # so that the process ends, and says why
        assert "if you did not start that process, tell the owner of the top server" in told.detail
        await end_of(older)
        newer.cancel()
    (event,) = scene.recorder.of_kind("identity_used_twice")
    assert event["older"].startswith("127.0.0.1:")
    assert event["newer"].startswith("127.0.0.1:")
    assert event["older"] != event["newer"]
    line = str(describe(event))
    assert line.startswith("WARNING: two processes use the identity of node hospital-a, from addresses 127.0.0.1:")
    assert "`top-server revoke hospital-a`" in line
    assert "another process with the same certificate" in scene.recorder.of_kind("node_left")[0]["reason"]


async def test_a_node_that_lost_its_network_or_was_restarted_raises_no_alarm(scene: Scene) -> None:
    own = await scene.enrol("hospital-a")
    async with dialled(own, scene.address) as before, dialled(own, scene.address) as after:
        older, _ = await joins(before, "hospital-a", (0, 1), process="one")
        newer, _ = await joins(after, "hospital-a", (0, 1), process="one")  # the loss is not noticed yet
        assert scene.recorder.of_kind("node_left")[0]["reason"] == ANEW
        newer.cancel()
        older.cancel()
        assert await scene.membership.until(lambda: not scene.membership.nodes, timeout_s=30.0)
        restarted, welcome = await joins(after, "hospital-a", (0, 1), process="two")
        assert isinstance(welcome, Welcome)
        restarted.cancel()
    assert scene.recorder.of_kind("identity_used_twice") == []


def test_two_that_throw_each_other_out_fill_no_record() -> None:
    recorder = Recorder()
    replacing = Replacing(recorder)
    callers = [Caller(node("a"), None, address=f"10.0.0.{last}:7", process=str(last)) for last in (1, 2)]
    for turn in range(1000):
        replacing.note("a", callers[turn % 2], callers[1 - turn % 2], enrolled=False)
    assert [event["times"] for event in recorder.of_kind("identity_used_twice")] == [1, 10, 100, 1000]
    assert "exclude it with a new CA" in recorder.events[0]["reason"]


def test_a_process_that_does_not_tell_its_number_counts_as_another_one() -> None:
    recorder = Recorder()
    silent = Caller(node("a"), None)
    Replacing(recorder).note("a", silent, silent, enrolled=True)
    assert len(recorder.of_kind("identity_used_twice")) == 1
