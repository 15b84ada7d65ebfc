"""The stream that a worker keeps open which runs group managers for the top server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc.aio

from fedgsp import wire
from fedgsp.connections.channels import first_message, refuse
from fedgsp.limits.gate import decoded
from fedgsp.messages import Admitted, Hosting, HostMessage, HostOrder, ManagerEnded, ManagerReady
from fedgsp.security import local_key
from fedgsp.security.access import caller
from fedgsp.v1 import hosting_pb2, hosting_pb2_grpc
from top_server.managers import hosts
from top_server.nodes.callers import Placed


class HostingServicer(hosting_pb2_grpc.HostingServiceServicer):
    """Admits the workers of this run. Who runs a manager learns the key of the run, so that nobody else may."""

    def __init__(self, managers: hosts.Hosts, placed: Placed, key: Callable[[], bytes]) -> None:
        """`key`: that of this user's processes, with which the top server proves that it is one; empty with TLS."""
        self._hosts = managers
        self._placed = placed
        self._key = key

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        hosting_pb2_grpc.add_HostingServiceServicer_to_server(self, server)

    async def Host(  # noqa: N802
        self, requests: AsyncIterator[hosting_pb2.HostMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[hosting_pb2.HostOrder]:
        """Serves the stream of one worker to its end."""
        first = await first_message(requests)
        hosting = (await decoded(HostMessage, first, context)).kind if first is not None else None
        if not isinstance(hosting, Hosting):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must name the worker")
        if hosting.run_id != self._placed.run or not self._placed.is_worker(hosting.node, caller()):
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, "only a worker of this run may run its managers")
        yield wire.encode(HostOrder(Admitted(local_key.proof(self._key(), caller().asks))))
        host = await self._hosts.join(hosting.node, hosting.machine)
        reading = asyncio.create_task(self._read(requests, host, context), name=f"managers of {host.node}")
        try:
            while (order := await host.outbox.get()) is not None:
                yield wire.encode(HostOrder(order))
        finally:
            reading.cancel()
            self._hosts.left(host)
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, requests: AsyncIterator[hosting_pb2.HostMessage], host: hosts.Host, context: grpc.aio.ServicerContext
    ) -> None:
        try:
            async for proto in requests:
                message = (await decoded(HostMessage, proto, context)).kind
                if isinstance(message, ManagerReady | ManagerEnded):
                    host.hear(message)
        finally:
            self._hosts.left(host)
