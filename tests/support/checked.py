"""A top server that a node checks itself against: its door for checks, right or wrong in one point."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from fedgsp.connections.channels import start_server
from fedgsp.messages import RelayMode
from fedgsp.report import Line
from fedgsp.security import local_key
from fedgsp.security.access import AccessControl
from fedgsp.security.tickets import Door, Verb
from fedgsp.security.tls import Tls
from fedgsp.settings.node_check import CheckSettings
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import RunConfig
from fedgsp_node.check.looking import look
from fedgsp_node.check.table import lines
from tests.support.callers import ISSUER
from tests.support.recorder import Recorder
from top_server.asked import asked
from top_server.checking.listener import ManagerDoor
from top_server.checking.servicer import CheckServicer
from top_server.choosing import choose
from top_server.nodes.membership import Membership


@dataclass
class Checked:
    """A top server, as a check sees it, and what it has recorded."""

    address: str
    membership: Membership
    recorder: Recorder
    managers: ManagerDoor


@asynccontextmanager
async def checked(
    tls: Tls | None = None, at: range | None = None, task: str = "digits", scheme: str = "fedgsp", **about: Any
) -> AsyncIterator[Checked]:
    """A top server that answers checks; managers would be `at` these ports. `about` goes to its CheckServicer.

    Its run would have this scheme.
    """
    config = RunConfig(scheme=scheme)
    about = {"asked": asked(config, choose(config)), **about}
    recorder = Recorder()
    members = Membership("run-1", task, RelayMode.AUTO, recorder, ISSUER)
    door = Door()
    guard = AccessControl({Verb.CHECK: door}, tls is not None, without_ticket=[Verb.CHECK] if tls else [])

    async def start(port: int) -> tuple[grpc.aio.Server, str]:
        return await start_server(f"127.0.0.1:{port}", [], guard, tls)

    managers = ManagerDoor(start, at)
    servicer = CheckServicer(members, managers, **about)
    server, address = await start_server("127.0.0.1:0", [servicer.add_to], guard, tls)
    try:
        with local_key.offered(address) if tls is None else contextlib.nullcontext(b"") as key:
            door.change(key)
            members.local_key = key
            yield Checked(address, members, recorder, managers)
    finally:
        await server.stop(None)
        await managers.give_way()


def settings(address: str, **changes: Any) -> CheckSettings:
    """Those of a node with two clients of the digits."""
    usual: dict[str, Any] = {"task_option": {"clients": "8"}, "clients": "0-1", "policy": NO_POLICY, "name": "n0"}
    return CheckSettings(top_server=address, **{**usual, **changes})


async def found(address: str, **changes: Any) -> dict[str, Line]:
    """The lines of a check by name."""
    return {line.name: line for line in lines(await look(settings(address, **changes)))}


@contextlib.contextmanager
def dropping() -> Iterator[str]:
    """An address whose machine drops the packets of new connections: a queue that is full and never emptied."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"
