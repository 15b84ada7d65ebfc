"""The addresses that models were fetched from. There are channels to the last of them alone."""

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator

from fedgsp.connections.channels import Channels

#: Addresses to which channels stay open. In a large run, and by hostile orders, a node would open thousands otherwise;
#: each takes a file descriptor and some 10 KiB.
MOST_PEERS = 256


class Peers:
    """Closes the channels to the address that was used least recently, when there are too many."""

    def __init__(self, channels: Channels, most: int = MOST_PEERS) -> None:
        self._channels, self._most = channels, most
        #: Address -> the fetches from there at this moment, and whether it has other uses; the latest is the last.
        self._used: OrderedDict[str, tuple[int, bool]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def using(self, address: str, server: bool) -> AsyncIterator[None]:
        """While models are fetched from an address. A `server` may have a session on the same channel."""
        count, _ = self._used.pop(address, (0, server))
        self._used[address] = count + 1, server
        try:
            yield
        finally:
            count, _ = self._used[address]
            self._used[address] = count - 1, server
            await self._close_some()

    async def _close_some(self) -> None:
        for address, (count, server) in list(self._used.items()):
            if len(self._used) <= self._most:
                return
            if not count and not (server and self._channels.is_connected(address)):
                del self._used[address]
                await self._channels.drop(address)
