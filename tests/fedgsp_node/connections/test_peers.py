"""A node keeps channels to the last addresses alone that it fetched models from, and never closes one in use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fedgsp.connections.channels import Channels
from fedgsp.identity import node
from fedgsp.messages import FailureCode, Source, SourceKind, Start
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.connections.peers import Peers
from fedgsp_node.fetching import Fetcher
from tests.support.serving import serving
from tests.support.weights import TENSORS, some_weights


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[str]]:
    """Addresses of so many servers that hold the model "m"."""
    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(count):
            store = ModelStore()
            store.put("m", some_weights())
            addresses.append((await stack.enter_async_context(serving(ModelServicer(store).add_to))).address)
        yield addresses


async def use(peers: Peers, channels: Channels, address: str, server: bool = False) -> None:
    async with peers.using(address, server):
        channel = await channels.to(address, node("n1"))
        await channel.channel_ready()


async def test_the_channel_that_was_used_least_recently_is_closed() -> None:
    async with servers(3) as (a, b, c), Channels() as channels:
        peers = Peers(channels, most=2)
        for address in (a, b, a, c):
            await use(peers, channels, address)
        assert [channels.is_connected(one) for one in (a, b, c)] == [True, False, True]


async def test_a_channel_in_use_is_not_closed() -> None:
    async with servers(3) as (a, b, c), Channels() as channels:
        peers = Peers(channels, most=1)
        async with peers.using(a, False):
            await use(peers, channels, a)
            await use(peers, channels, b)
            await use(peers, channels, c)
            assert [channels.is_connected(one) for one in (a, b, c)] == [True, False, False]
        await use(peers, channels, b)
        assert not channels.is_connected(a)


async def test_a_connection_to_a_server_may_carry_a_session_and_stays() -> None:
    async with servers(3) as (a, b, c), Channels() as channels:
        peers = Peers(channels, most=1)
        await use(peers, channels, a, server=True)
        await use(peers, channels, b)
        await use(peers, channels, c)
        assert [channels.is_connected(one) for one in (a, b, c)] == [True, False, False]


@pytest.mark.parametrize("kind", [SourceKind.NODE, SourceKind.MANAGER])
async def test_an_order_that_names_many_addresses_leaves_no_more_channels(kind: SourceKind) -> None:
    async with Channels() as channels:
        fetcher = Fetcher(ModelStore(), channels, TENSORS, "127.0.0.1")
        sources = tuple(Source(kind, f"n{port}", f"127.0.0.2:{port}") for port in range(20_000, 20_064))
        fetcher._peers = Peers(channels, most=16)
        with pytest.raises(WeightsError) as error:
            await fetcher._try_each(Start("m", sources), TENSORS)
        assert error.value.failure.code is FailureCode.UNREACHABLE
        assert len(channels._open) == 16
        assert len(channels._dialling) == 0


async def test_a_peer_whose_channel_was_closed_is_dialled_again() -> None:
    async with servers(3) as addresses, Channels() as channels:
        fetcher = Fetcher(ModelStore(), channels, TENSORS, "127.0.0.1")
        fetcher._peers = Peers(channels, most=1)
        for address in (*addresses, *addresses):
            found, _, _ = await fetcher.get(Start("m", (Source(SourceKind.NODE, "n1", address),)))
            assert found.digest == some_weights().digest
        assert len(channels._open) == 1
