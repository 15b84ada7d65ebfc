"""Callers that may do everything, for tests of what lies behind the door; and the keys of a run."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import grpc.aio

from fedgsp.identity import Identity, manager, node
from fedgsp.tickets import Issuer, Ticket, Verb

_NUMBERS = itertools.count()
#: The key of the runs of tests.
ISSUER = Issuer(bytes(32))


class Anybody:
    """A caller that may do everything, and any process that admits it."""

    proven: Identity | None = None
    reader: Identity | None = None
    certificate = b""
    enrolment = ""

    @property
    def asks(self) -> str:
        """Another thing for each call: as if it had a ticket for each."""
        return str(next(_NUMBERS))

    def may(self, thing: str) -> bool:
        return True

    def is_node(self, name: str) -> bool:
        return True

    def while_good(self, caller: object, context: grpc.aio.ServicerContext) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def refused(self, method: str, peer: str, number: int, why: str) -> None:
        pass

    def admit(self, method: str, context: grpc.aio.ServicerContext) -> Anybody:
        return self


ANYBODY = Anybody()


def over(channel: grpc.aio.Channel) -> Callable[[], Awaitable[grpc.aio.Channel]]:
    """In place of `Channels.to`: always this channel."""

    async def dial() -> grpc.aio.Channel:
        return channel

    return dial


def attach_ticket(name: str, to: str = "m0") -> bytes:
    """The ticket by which a node attaches to a manager."""
    return ISSUER.ticket(manager(to), Ticket(Verb.ATTACH, to, node(name)))
