"""Group managers in the test's own event loop: real servers and streams, for more runs than processes could serve."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgsp.security.tickets import Issuer
from fedgsp.settings.managers import ManagerSettings
from fedgsp.transfers.link_choice import AUTO
from group_manager.server import serving
from top_server import server
from top_server.managers.launching import Greet, Launched


def managers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on runs of this test have them."""
    monkeypatch.setattr(server, "launching_here", _launching)


@dataclass(frozen=True, slots=True, eq=False)
class _InThisProcess:
    """A manager, which ends with its run."""

    pid: int = os.getpid()
    over: str = ""

    async def end(self, grace_s: float) -> None:
        """Nothing to do: see `_launching`."""


class _Launcher:
    at_once = 1
    #: Groups share managers here, so that most tests of runs show that they may.
    enough = 2
    most = None

    def __init__(self, stack: AsyncExitStack, issuer: Issuer, run_id: str, wire: str) -> None:
        self._stack = stack
        self._issuer = issuer
        self._run_id = run_id
        self._wire = wire

    async def launch(self, name: str, greet: Greet) -> Launched:
        served = serving(ManagerSettings(name=name, run=self._run_id, wire=self._wire), self._issuer)
        address = await self._stack.enter_async_context(served)
        await greet(address)
        return Launched(address, _InThisProcess(), "that of the test")


@asynccontextmanager
async def _launching(
    _host: str, _ports: object, _logs: Path, flags: Sequence[str], run_key: bytes
) -> AsyncIterator[_Launcher]:
    given = dict(itertools.pairwise(flags))
    async with AsyncExitStack() as stack:
        yield _Launcher(stack, Issuer(run_key), given["--run"], given.get("--wire", AUTO))
