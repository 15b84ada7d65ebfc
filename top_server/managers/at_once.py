"""Few starts at the same time."""

import asyncio
import contextlib
from collections.abc import Callable


class AtOnce(contextlib.AbstractAsyncContextManager[None]):
    """Lets at most `most()` callers in at the same time. The number may change: machines come and go."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._inside = 0
        self._left = asyncio.Event()

    async def __aenter__(self) -> None:
        while self._inside >= self._most():
            self._left.clear()
            await self._left.wait()
        self._inside += 1

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        self._left.set()
