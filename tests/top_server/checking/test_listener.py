from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from fedgsp.connections.channels import start_server
from tests.support.callers import OPEN
from tests.support.ports import free_ports
from top_server.checking.listener import ManagerDoor


async def start(port: int) -> tuple[grpc.aio.Server, str]:
    return await start_server(f"127.0.0.1:{port}", [], OPEN)


async def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.transport.abort()
    return True


async def test_it_listens_while_a_check_asks_and_no_longer() -> None:
    door = ManagerDoor(start, None)
    async with door.open() as one:
        async with door.open() as other:
            assert one == other
            assert await listens(one)
        assert await listens(one)
    assert not await listens(one)
    async with door.open() as again:
        assert await listens(again)


async def test_it_takes_the_last_port_that_is_free_because_managers_take_the_first() -> None:
    with free_ports(1) as held:
        taken = held[0].getsockname()[1]
        door = ManagerDoor(start, range(taken - 30, taken + 1))
        async with door.open() as address:
            assert taken - 30 <= int(address.rpartition(":")[2]) < taken
        everything = ManagerDoor(start, range(taken, taken + 1))
        async with everything.open() as address:
            assert address == ""


async def test_it_gives_way_to_managers_and_names_one_of_them() -> None:
    door, running = ManagerDoor(start, None), list[str]()
    async with door.open() as before:
        await door.give_way(lambda: running)
        assert not await listens(before)
    async with door.open() as none:
        assert none == ""
    running.append("127.0.0.1:7100")
    async with door.open() as manager:
        assert manager == "127.0.0.1:7100"


async def test_checks_that_begin_while_the_last_one_ends_still_find_it_open() -> None:
    door = ManagerDoor(start, None)

    async def check() -> bool:
        async with door.open() as address:
            return await listens(address)

    assert await asyncio.gather(*(check() for _ in range(20))) == [True] * 20


@pytest.mark.parametrize("raised", [ValueError, asyncio.CancelledError])
async def test_it_ends_with_a_call_that_fails(raised: type[BaseException]) -> None:
    door = ManagerDoor(start, None)
    with pytest.raises(raised):
        async with door.open() as address:
            raise raised
    assert not await listens(address)
