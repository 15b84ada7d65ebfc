"""A whole system under mutual TLS: the same bits as in the open, and no door for strangers."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp.connections.channels import Channels, describe
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER, Identity, node
from fedgsp.security.tls import Tls, TlsFiles
from fedgsp.settings.managers import ManagerSettings
from fedgsp.settings.run import NodeSettings
from fedgsp_node import server as node_server
from fedgsp_node.tasks import load_task
from group_manager import server as manager_server
from tests.support.certificates import Authority, unchecked
from tests.support.cluster import nodes, play, settings
from tests.support.reference import Reference, assert_same_bits
from tests.support.serving import serving
from top_server import grouping_service
from top_server.record.journal import Line


def flags_of(files: TlsFiles) -> dict[str, Any]:
    return {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}


class Doors:
    """A CA, a certificate of it, and those who may not come in."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self.tls = unchecked(self._authority.issue())
        foreign = unchecked(Authority(folder, "foreign").issue())
        self.settings = flags_of(self.tls.files)
        self.strangers = {"plain": None, "foreign": dataclasses.replace(foreign, ca=self.tls.ca)}

    def node(self, of: NodeSettings) -> NodeSettings:
        """A node with a certificate of its own."""
        assert of.name is not None
        return dataclasses.replace(of, **flags_of(self._authority.issue(of.name, identity=node(of.name))))

    async def assert_closed(self, address: str, who: Identity = TOP_SERVER) -> None:
        """A door for holders of a certificate, and for nobody else."""
        assert (await _heard(address, self.tls, who)).startswith("the process there does not know this call")
        for name, stranger in self.strangers.items():
            assert "closed the connection at once" in await _heard(address, stranger, who), (name, address)


async def _heard(address: str, tls: Tls | None, who: Identity) -> str:
    async with Channels(tls) as channels:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (await channels.to(address, who)).unary_unary("/stranger/Call")(b"", timeout=10)
    return describe(caught.value)


@pytest.fixture
def doors(tmp_path: Path) -> Doors:
    return Doors(tmp_path)


@asynccontextmanager
async def started(program: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A program that says on stdout at which address it serves."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", SimpleNamespace(write=lines.put_nowait, flush=lambda: None))
        running = asyncio.create_task(program)
        line = await asyncio.wait_for(lines.get(), 30)
    try:
        yield line.split()[-1]
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_run_gives_the_oracles_bits_and_none_of_its_servers_takes_strangers(
    tmp_path: Path, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Reference(load_task("digits", {"clients": "8"}), range(8), rounds=2, beta=2, sampling_rate=1.0)
    found: list[tuple[str, Identity]] = []
    here = asyncio.Event()

    def watch(event: Line) -> None:
        if event["event"] in ("listening", "node_joined"):
            found.append((event["address"], node(event["node"]) if "node" in event else TOP_SERVER))
        if len(found) == 3:
            here.set()

    async def comes_last(settings: NodeSettings) -> None:
        await here.wait()
        for address, who in found:
            await doors.assert_closed(address, who)
        await node_server.run(settings)

    async with started(grouping_service.serve("127.0.0.1:0", doors.tls), monkeypatch) as service:
        await doors.assert_closed(service)
        config = settings(
            tmp_path / "run",
            listen="0.0.0.0:0",  # managers, too, are told an address that names nobody
            min_nodes=3,
            grouping=f"grpc://{service}",
            **doors.settings,
        )
        hosts = [doors.node(one) for one in nodes([7, 0, 3], [1, 2], [4, 5, 6])]
        run = await play(config, hosts[:2], [(hosts[2], comes_last)], watch)
    assert_same_bits(run.model(2), expected.play_fedgsp()[1])
    assert [row["clients_trained"] for row in run.rows] == [8, 8]
    assert all(row["bytes_direct"] > 0 for row in run.rows)
    assert f'tls_key = "{doors.tls.files.key}"' in run.directory.config.read_text()


@pytest.mark.slow
async def test_nodes_that_cannot_be_dialled_relay_under_tls_too(tmp_path: Path, doors: Doors) -> None:
    expected = Reference(load_task("digits", {"clients": "8"}), range(8), rounds=1, beta=2, sampling_rate=1.0)
    config = settings(tmp_path / "run", rounds=1, listen="0.0.0.0:0", **doors.settings)
    hosts = [doors.node(one) for one in nodes(range(4), range(4, 8), peers=False)]
    run = await play(config, hosts)
    assert_same_bits(run.model(1), expected.play_fedgsp()[0])


async def test_a_group_manager_takes_no_strangers(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ManagerSettings(name="m0")
    async with started(manager_server.run(own, bytes(32), doors.tls), monkeypatch) as address:
        await doors.assert_closed(address)


@pytest.mark.parametrize(
    ("dialled", "dials", "said"),
    [
        (True, False, "no top server of this user listens there without TLS.* if it uses TLS"),
        (False, True, "the TLS handshake failed: it does not use TLS"),
    ],
)
async def test_a_node_and_a_top_server_of_which_one_has_tls_do_not_meet_and_the_node_says_why(
    doors: Doors, dialled: bool, dials: bool, said: str
) -> None:
    async with serving(tls=doors.tls if dialled else None) as top:
        task = "tests.support.batch_norm_task:Task"
        plain = NodeSettings(name="n3", top_server=top.address, task=task, clients="3", connect_timeout=0.1)
        alone = doors.node(plain) if dials else plain
        with pytest.raises(PeerError, match=f"no top server at {top.address} .*{said}"):
            await node_server.run(alone)
