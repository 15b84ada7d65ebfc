"""The decisions of the place, with a stand-in for the driver. tests/end_to_end/test_ray.py plays a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError, PeerError, RunError
from fedgsp.settings.run import NodeSettings
from top_server.placing.base import CA, OWN, About, Ended, Resources, Worker
from top_server.placing.ray import connection
from top_server.placing.ray import place as place_module
from top_server.placing.ray.options import RayOptions
from top_server.placing.ray.place import MOST_LOSSES, Ray


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "DRIVER", "tests.support.ray_driver")
    monkeypatch.setattr(place_module, "RETURN_AFTER_S", 0.0)


@contextlib.asynccontextmanager
async def placed(folder: Path, address: str, **options: Any) -> AsyncIterator[asyncio.Queue[Ended]]:
    """A worker in a cluster at this address, and its ends."""
    ends: asyncio.Queue[Ended] = asyncio.Queue()
    place = Ray(RayOptions(address=address, **options), About("run", folder / "place", ends.put_nowait))
    secrets = {CA: b"of the CA", OWN: b"a secret"}
    settings = NodeSettings(name="node-0", state_dir=folder / "state" / "node-0")
    worker = Worker("node-0", settings, folder / "node-0.log", Resources(2, 0.5, 100), secrets)
    try:
        await place.start([worker])
        yield ends
    finally:
        await place.stop()


def asked(folder: Path, what: str) -> list[dict[str, Any]]:
    """What the driver was asked to do."""
    lines = [json.loads(line) for line in (folder / "ray.log").read_text().splitlines()]
    return [line for line in lines if line["do"] == what]


async def test_the_end_of_a_worker_is_told_with_its_exit_code_and_its_output_is_in_its_log(tmp_path: Path) -> None:
    async with placed(tmp_path, "fails") as ends:
        assert await ends.get() == Ended("node-0", 3)
    assert (tmp_path / "node-0.log").read_text() == "hello\n"
    [place] = asked(tmp_path, "place")
    assert (place["cpus"], place["gpus"], place["memory"]) == (2, 0.5, 100)


@pytest.mark.parametrize(("address", "state"), [("fails", "/nowhere/w/state"), ("shared", "{}/state/node-0")])
async def test_a_worker_keeps_its_state_in_the_run_directory_if_its_machine_has_that(
    tmp_path: Path, address: str, state: str
) -> None:
    async with placed(tmp_path, address) as ends:
        await ends.get()
    [begin] = asked(tmp_path, "begin")
    words = begin["arguments"]
    assert words[: words.index("--name") + 2] == ["fedgsp_node", "start", "--name", "node-0"]
    assert words[words.index("--state-dir") + 1] == state.format(tmp_path)
    assert words[words.index("--advertise") + 1] == "10.0.0.7:0"
    assert words[words.index("--tls-key") + 1] == f"/nowhere/w/{OWN}"
    assert begin["secrets"] == {CA: "of the CA", OWN: "a secret"}
    assert not any("secret" in word for word in words)


async def test_a_lost_worker_is_placed_again_but_not_without_end(tmp_path: Path) -> None:
    async with placed(tmp_path, "shaky") as ends:
        told = [await ends.get() for _ in range(MOST_LOSSES)]
    lost = Ended("node-0", None, "its node has died", returns=True)
    assert told[:-1] == [lost] * (MOST_LOSSES - 1)
    assert told[-1] == Ended("node-0", None, f"its node has died, {MOST_LOSSES} times in a row")
    assert len(asked(tmp_path, "place")) == MOST_LOSSES


async def test_a_machine_without_fedgsp_is_not_tried_again(tmp_path: Path) -> None:
    async with placed(tmp_path, "bare") as ends:
        ended = await ends.get()
    assert not ended.returns
    assert "Install FedGSP there" in ended.reason


async def test_a_worker_that_gets_no_machine_ends_with_what_is_missing(tmp_path: Path) -> None:
    async with placed(tmp_path, "full", start_timeout=0.2) as ends:
        ended = await ends.get()
    assert ended.reason == "it had no machine for 0.2 s: the cluster has no machine"
    assert not ended.returns


async def test_a_log_that_cannot_be_written_ends_the_worker(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").mkdir()
    async with placed(tmp_path, "fine") as ends:
        ended = await ends.get()
    assert "node-0.log" in ended.reason
    assert "there is a folder of that name" in ended.reason
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ray.log").mkdir()
    with pytest.raises(RunError, match=r"ray\.log"):
        async with placed(tmp_path / "other", "fine"):
            pass


async def test_a_stop_ends_workers_that_run_or_wait_without_telling(tmp_path: Path) -> None:
    for address in ("fine", "full"):
        (tmp_path / address).mkdir()
        async with placed(tmp_path / address, address) as ends:
            pass
        assert ends.empty()
        assert len(asked(tmp_path / address, "stop")) == 1


async def test_the_end_of_the_driver_ends_the_workers_with_its_last_words(tmp_path: Path) -> None:
    async with placed(tmp_path, "ends") as ends:
        ended = await ends.get()
    assert ended.reason.startswith("Ray's driver ended with exit code 9; its log, ")
    assert not ended.returns


async def test_a_driver_that_cannot_connect_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no Ray cluster; start one"):
        async with placed(tmp_path, "nowhere"):
            pass
    with pytest.raises(PeerError, match=r"ended with exit code 1; its log, .*ray\.log, ends: .*it broke"):
        async with placed(tmp_path, "broken"):
            pass


async def test_a_driver_that_never_connects_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.0)
    with pytest.raises(PeerError, match="Ray did not connect to fine within 0 s"):
        async with placed(tmp_path, "fine"):
            pass
