"""Listens where a group manager would, while a node is checked: so a firewall in front of those ports is found."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import grpc.aio

from fedgsp.errors import ConfigError
from fedgsp.to_the_end import looked_at

logger = logging.getLogger(__name__)

#: Starts a server without any service at a port of the host of the managers; raises ConfigError if it is taken.
Start = Callable[[int], Awaitable[tuple[grpc.aio.Server, str]]]


class ManagerDoor:
    """One server for all nodes that are checked at the same time. It ends with the last of their calls.

    From the first round on managers need the ports: no port is taken here any more, and a manager is named instead.
    """

    def __init__(self, start: Start, ports: Iterable[int] | None) -> None:
        """`ports` of --manager-ports, None for any."""
        # Managers take the first free port: the last one is the least likely to be in the way of one that starts.
        self._ports = [0] if ports is None else sorted(ports, reverse=True)
        self._start = start
        self._managers: Callable[[], Sequence[str]] = lambda: ()
        self._server: grpc.aio.Server | None = None
        self._address = ""
        self._users = 0
        self._closed = False
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """The address of a manager, or of the server in its place while the body runs; empty if no port is free."""
        self._users += 1
        try:
            async with self._changing:
                if self._server is None and not self._closed:
                    await self._listen()
            yield self._address or next(iter(self._managers()), "")
        finally:
            self._users -= 1
            if not self._users:
                await asyncio.shield(looked_at(self._end()))

    async def give_way(self, managers: Callable[[], Sequence[str]] = lambda: ()) -> None:
        """Frees the port for managers; no port is taken again. `managers` gives the addresses of those that run."""
        self._closed, self._managers = True, managers
        await self._end(anyway=True)

    async def _listen(self) -> None:
        for port in self._ports:
            try:
                self._server, self._address = await self._start(port)
            except ConfigError as error:
                logger.debug("no check of manager ports at port %d: %s", port, error)
            else:
                return

    async def _end(self, anyway: bool = False) -> None:
        async with self._changing:
            if self._server is not None and (anyway or not self._users):
                server, self._server, self._address = self._server, None, ""
                await server.stop(None)
