"""No model passes a network in the clear unless a person said so: neither by listening, nor by dialling."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from fedgsp.connections.channels import Channels, start_server
from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import FailureCode, Source, SourceKind, Start
from fedgsp.settings.checks import check
from fedgsp.settings.files import dump, parse
from fedgsp.settings.flags import add_to, arguments_of
from fedgsp.settings.managers import ManagerSettings
from fedgsp.settings.run import GroupingServiceSettings, NodeSettings, RunConfig
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.fetching import Fetcher
from tests.support.callers import OPEN
from tests.support.processes import program
from top_server.placing.workers import workers

BEYOND = (
    *("0.0.0.0:0", "*:0", "[::]:0", "10.0.0.1:7000", "[fe80::1%eth0]:7000", "192.0.2.1:7000"),
    *("top.example.org:7000", "localhost.example.org:7000", "[::ffff:10.0.0.1]:1"),
)
HERE = ("127.0.0.1:0", "127.9.9.9:7000", "[::1]:0", "localhost:0")
#: Settings with one address of each kind -> the flag in the error.
ADDRESSES: dict[str, Any] = {
    "--listen": lambda address: RunConfig(listen=address),
    "--listen of a manager": lambda address: ManagerSettings(name="m0", listen=address),
    "--listen of a service": lambda address: GroupingServiceSettings(listen=address),
    "--grouping": lambda address: RunConfig(grouping=f"grpc://{address}"),
    "--top-server": lambda address: NodeSettings(top_server=address),
    "--peer-listen": lambda address: NodeSettings(top_server="127.0.0.1:1", peer_listen=address),
    "--advertise": lambda address: NodeSettings(
        top_server="127.0.0.1:1", peer_listen="127.0.0.1:0", advertise=address
    ),
}


@pytest.mark.parametrize("address", BEYOND)
@pytest.mark.parametrize("setting", ADDRESSES)
def test_an_address_beyond_this_machine_needs_tls_or_a_word(setting: str, address: str) -> None:
    with pytest.raises(ConfigError, match=r"loopback.*top-server invite.*--tls-ca.*--insecure") as caught:
        check(ADDRESSES[setting](address), {})
    assert caught.value.what.startswith(setting.partition(" ")[0])


@pytest.mark.parametrize("address", HERE)
@pytest.mark.parametrize("setting", ADDRESSES)
def test_an_address_of_this_machine_needs_neither(setting: str, address: str) -> None:
    check(ADDRESSES[setting](address), {})


def test_the_word_is_passed_on_to_managers_and_local_nodes_and_is_recorded(tmp_path: Path) -> None:
    config = RunConfig(listen="0.0.0.0:0", insecure=True, local_nodes=1)
    check(config, {})
    assert parse(RunConfig, dump(config), tmp_path).insecure
    parser = argparse.ArgumentParser()
    add_to(parser, ManagerSettings)
    arguments = arguments_of(ManagerSettings(**config.for_children, name="m0"))
    assert ManagerSettings(**vars(parser.parse_args(arguments))).insecure
    (worker,) = workers(config, "127.0.0.1:7000", tmp_path, tmp_path)
    assert "--insecure" in worker.arguments("127.0.0.1", tmp_path)
    assert not ManagerSettings(**vars(parser.parse_args(["--name", "m0"]))).insecure


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]"])
async def test_a_server_opens_no_port_to_other_machines_whatever_told_it_to(host: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="--insecure"):  # as for an address in the record of a resumed run
        await start_server(f"{host}:{port}", [], OPEN)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_top_server_on_loopback_cannot_send_a_node_elsewhere_in_the_clear() -> None:
    async with Channels() as channels:
        for address in BEYOND[3:]:
            with pytest.raises(ConfigError, match="have no TLS"):
                await channels.to(address, TOP_SERVER)
        fetcher = Fetcher(ModelStore(), channels, (), "127.0.0.1")
        with pytest.raises(WeightsError) as caught:
            await fetcher.get(Start("m", (Source(SourceKind.NODE, "n1", "192.0.2.1:7000"),)))
        assert caught.value.failure.code is FailureCode.UNREACHABLE
        assert "have no TLS" in caught.value.failure.detail
    async with Channels(insecure=True) as channels:
        await channels.to("192.0.2.1:7000", TOP_SERVER)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "command",
    [
        ["top_server", "--run-dir", "run", "--listen", "0.0.0.0:0"],
        ["top_server", "grouping-service", "--listen", "[::]:0"],
        ["group_manager", "--name", "m0", "--run", "r", "--listen", "0.0.0.0:0"],
        ["fedgsp_node", "start", "--top-server", "192.0.2.1:7000"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
async def test_every_program_ends_with_exit_code_2(command: list[str], tmp_path: Path) -> None:
    async with program(command, tmp_path / "log") as ended:
        assert (await ended.ended(), ended.lines) == (2, [])
    assert "or --insecure" in ended.errors
    assert os.listdir(tmp_path) == ["log"]
