"""The stream that every node keeps open to the top server."""

from collections.abc import AsyncIterator

import grpc.aio

from fedgsp import wire
from fedgsp.connections.channels import first_message, refuse
from fedgsp.connections.handlers import Opening
from fedgsp.limits.gate import decoded, peer_of
from fedgsp.limits.turns import Turns
from fedgsp.messages import Failure, Hello, MakeConstants, NodeMessage, TopServerMessage
from fedgsp.security import local_key
from fedgsp.security.access import ANSWER, caller
from fedgsp.v1 import membership_pb2, membership_pb2_grpc
from top_server.nodes.membership import Membership

#: How long a node may take to make the constants of its model, which may be gigabytes in a file.
MAKE_TIMEOUT_S = 600.0
#: Calls under one name that may wait for that at once, from one address or with one certificate: a node that lost its
#: connection comes back before the older call is known as lost.
MOST_MAKING = 2


class MembershipServicer(membership_pb2_grpc.MembershipServiceServicer):
    """Admits nodes. A node is part of the run from its first message (`Hello`) until its stream ends."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._making = Turns(MOST_MAKING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(self, server)

    async def Join(  # type: ignore[override]  # noqa: N802
        self, requests: AsyncIterator[membership_pb2.NodeMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[membership_pb2.TopServerMessage | Opening]:
        """Serves the stream of one node from its `Hello` to its end."""
        first = await first_message(requests)
        hello = (await decoded(NodeMessage, first, context)).kind if first is not None else None
        if not isinstance(hello, Hello) or not hello.node:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must introduce the node")
        yield Opening(((ANSWER, local_key.proof(self._membership.local_key, caller().asks)),))
        if hello.constants:
            if refused := self._membership.refused(hello, caller(), made=False):
                yield wire.encode(TopServerMessage(refused))
                return
            node, hello, first = hello.node, None, None  # what is known of it is not held while it works
            with self._making.of((peer_of(context), node)):
                yield wire.encode(TopServerMessage(MakeConstants(self._membership.constants_seed)))
                second = await first_message(requests, MAKE_TIMEOUT_S)
            made = (await decoded(NodeMessage, second, context)).kind if second is not None else None
            if not isinstance(made, Hello) or made.node != node:
                await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the second message must have the constants")
            hello = made
        admitted = await self._membership.admit(hello, caller())
        if isinstance(admitted, Failure):
            yield wire.encode(TopServerMessage(admitted))
            return
        try:
            while (message := await admitted.outbox.get()) is not None:
                yield wire.encode(TopServerMessage(message))
        finally:
            gone = caller().enrolment in self._membership.revoked
            await self._membership.leave(admitted, "its certificate was revoked" if gone else "its stream was lost")
