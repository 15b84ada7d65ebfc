"""Group managers in the test's own event loop: real servers and streams, for more runs than processes could serve."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from fedgsp.channels import Channels
from fedgsp.identity import TOP_SERVER
from fedgsp.link_choice import AUTO
from fedgsp.tickets import Issuer
from group_manager.server import serving
from top_server import server
from top_server.managers.client import ManagerClient
from top_server.managers.pool import Manager


def managers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on runs of this test have them."""
    monkeypatch.setattr(server, "manager_pool", _pool)


class _Pool:
    def __init__(self, stack: AsyncExitStack, channels: Channels, issuer: Issuer, run_id: str, wire: str) -> None:
        self._stack = stack
        self._channels = channels
        self._issuer = issuer
        self._run_id = run_id
        self._wire = wire
        self._managers: list[Manager] = []
        self._numbers = itertools.count()

    async def ensure(self, count: int) -> list[Manager]:
        while len(self._managers) < count:
            name = f"m{next(self._numbers)}"
            served = serving(name, self._run_id, "127.0.0.1:0", self._issuer, wire=self._wire)
            address = await self._stack.enter_async_context(served)
            dial = functools.partial(self._channels.to, address, TOP_SERVER)
            client = ManagerClient(name, dial, self._issuer)
            self._managers.append(Manager(name, address, cast("Any", None), client, 0))
        return self._managers[:count]

    async def close(self) -> None:
        await self._stack.aclose()
        self._managers.clear()

    async def replace(self, manager: Manager) -> Manager:
        raise AssertionError(f"{manager.name} does not answer")

    async def discard(self, manager: Manager) -> None:
        raise AssertionError(f"{manager.name} does not answer")


@asynccontextmanager
async def _pool(
    _host: str,
    _ports: object,
    _logs: Path,
    channels: Channels,
    _recorder: object,
    issuer: Issuer,
    flags: Sequence[str],
    _prefix: str,
) -> AsyncIterator[_Pool]:
    async with AsyncExitStack() as stack:
        given = dict(itertools.pairwise(flags))
        yield _Pool(stack, channels, issuer, given["--run"], given.get("--wire", AUTO))
