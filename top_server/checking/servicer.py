"""Answers what `fedgsp-node check` asks: about this top server, bytes that come back, whether the node could join."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import grpc.aio

from fedgsp import wire
from fedgsp.connections.channels import refuse
from fedgsp.limits.gate import decoded
from fedgsp.messages import PROTOCOL, About, AskAbout, CheckAnswer, CheckQuestion, Echo, Failure, Hello, WouldTake
from fedgsp.security import local_key
from fedgsp.security.access import Caller, caller
from fedgsp.seldom import SeldomLog
from fedgsp.v1 import check_pb2, check_pb2_grpc
from fedgsp.versions import versions
from fedgsp.visible import visible
from top_server.asked import Asked
from top_server.checking.listener import ManagerDoor
from top_server.nodes.membership import Membership
from top_server.nodes.refusals import MOST_OF_NAME

logger = logging.getLogger(__name__)

#: Longest life of one call, in seconds. A node asks again once its data are read.
MOST_S = 20.0
#: Most questions of one call: a call carries at most so many times MOST_ECHO_BYTES.
MOST_QUESTIONS = 64


class CheckServicer(check_pb2_grpc.CheckServiceServicer):
    """Answers the questions of nodes that are not part of the run."""

    def __init__(
        self,
        membership: Membership,
        door: ManagerDoor,
        ports: str = "",
        clock: Callable[[], float] = time.time,
        protocol: int = PROTOCOL,
        own: Mapping[str, str] | None = None,
        asked: Asked | None = None,
    ) -> None:
        """`ports` is what --manager-ports says. `own` are the versions that it tells, by default those it has.

        A node that could join is told what the run orders, if `asked` says so.
        """
        self._membership = membership
        self._door = door
        self._ports = ports
        self._clock = clock
        self._protocol = protocol
        self._versions = versions() if own is None else own
        self._asked = asked
        self._told = SeldomLog(logger, logging.INFO, "check")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        check_pb2_grpc.add_CheckServiceServicer_to_server(self, server)

    async def Check(  # noqa: N802
        self, requests: AsyncIterator[check_pb2.CheckQuestion], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[check_pb2.CheckAnswer]:
        """Answers each question of a call, for MOST_S seconds at most."""
        ends = asyncio.get_running_loop().time() + MOST_S
        questions = aiter(requests)
        async with contextlib.AsyncExitStack() as stack:
            address: str | None = None
            for _ in range(MOST_QUESTIONS):
                try:
                    async with asyncio.timeout_at(ends):
                        proto = await anext(questions, None)
                except TimeoutError:
                    await refuse(context, grpc.StatusCode.ABORTED, "a check takes too long")
                if proto is None:
                    return
                match (await decoded(CheckQuestion, proto, context)).kind:
                    case AskAbout():
                        if address is None:
                            address = await stack.enter_async_context(self._door.open())
                        answer = CheckAnswer(self._about(address, caller()))
                    case Echo() as echo:
                        answer = CheckAnswer(echo)
                    case Hello() as hello:
                        answer = CheckAnswer(self._judged(hello, caller()))
                    case _:
                        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "a check has to ask something")
                yield wire.encode(answer)
            await refuse(context, grpc.StatusCode.ABORTED, "a check asks too much", questions)

    def _judged(self, hello: Hello, caller: Caller) -> WouldTake | Failure:
        found = self._membership.would_take(hello, caller)
        could = f"it could not join now: {found}" if isinstance(found, Failure) else "it could join now"
        self._told.line(f"node {visible(hello.node[:MOST_OF_NAME])} was checked: {visible(could)}")
        if isinstance(found, Failure) or self._asked is None:
            return found
        return replace(found, trainings=self._asked.trainings, work=self._asked.work)

    def _about(self, address: str, caller: Caller) -> About:
        proof = local_key.proof(self._membership.local_key, caller.asks)
        return About(self._protocol, self._versions, self._clock(), address, self._ports, proof)
