"""Callers that may do everything, for tests of what lies behind the door; and the keys of a run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable

import grpc.aio

from fedgsp.connections.handlers import Opening
from fedgsp.identity import TOP_SERVER, Identity, manager, node
from fedgsp.security.access import ANSWER, PROCESS, QUESTION, AccessControl, Caller, caller
from fedgsp.security.tickets import Issuer, Ticket, Verb

_NUMBERS = itertools.count()
#: The key of the runs of tests.
ISSUER = Issuer(bytes(32))


class Anybody(Caller):
    """A caller that may do everything."""

    @property
    def asks(self) -> str:
        """Another thing for each call: as if it had a ticket for each."""
        return str(next(_NUMBERS))

    def may(self, thing: str) -> bool:
        return True

    def is_node(self, name: str) -> bool:
        return True


ANYBODY = Anybody(None, None)


class Open(AccessControl):
    """Admits everybody to every call, as one caller."""

    def __init__(self, everybody: Caller = ANYBODY) -> None:
        super().__init__({}, tls=False)
        self._everybody = everybody

    def admit(self, method: str, context: grpc.aio.ServicerContext, ca: bytes = b"") -> Caller:
        said = dict(context.invocation_metadata() or ())
        process, question = (str(said.get(name, "")) for name in (PROCESS, QUESTION))
        return dataclasses.replace(self._everybody, process=process, question=question)


OPEN = Open()


def over(channel: grpc.aio.Channel) -> Callable[[], Awaitable[grpc.aio.Channel]]:
    """In place of `Channels.to`: always this channel."""

    async def dial() -> grpc.aio.Channel:
        return channel

    return dial


def shown_by(name: str = "m0", reader: Identity = TOP_SERVER) -> Opening:
    """What a manager says first, with which it shows the caller that it is one of the run."""
    asked = caller().question
    return Opening(((ANSWER, ISSUER.answer(reader, name, asked)),)) if asked else Opening()


def attach_ticket(name: str, to: str = "m0") -> bytes:
    """The ticket by which a node attaches to a manager."""
    return ISSUER.ticket(manager(to), Ticket(Verb.ATTACH, to, node(name)))
