"""Few calls at once for one thing: a new call ends the oldest."""

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from fedgsp.connections.endings import end_call


class Turns:
    """The open calls by key. The newest counts, because a caller that asks again has lost its call before."""

    def __init__(self, most: int) -> None:
        """At most `most` calls of one key are open."""
        self._most = most
        self._open: defaultdict[Hashable, list[asyncio.Task[Any] | None]] = defaultdict(list)

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """The body is a call of this key, made by the current task. It ends if too many newer ones come."""
        mine, calls = asyncio.current_task(), self._open[key]
        calls.append(mine)
        if len(calls) > self._most and (oldest := calls.pop(0)) is not None:
            end_call(oldest, grpc.StatusCode.ABORTED, "newer calls for the same thing have come")
        try:
            yield
        finally:
            if mine in calls:
                calls.remove(mine)
            if not calls and self._open.get(key) is calls:  # a newer call may have begun another list meanwhile
                del self._open[key]
