"""Enrolments that are not good any more: their holders may make no further calls, and their open calls end."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc.aio

#: What a caller is told whose certificate was revoked.
REASON = "the certificate of this node was revoked: ask for a new invitation"

#: Time for a message that is being sent when its call is ended.
SETTLE_S = 0.2


class Revocations:
    """The revoked enrolments, as this process knows them, and the open calls of all enrolments."""

    def __init__(self) -> None:
        self._enrolments: frozenset[str] = frozenset()
        self._calls: defaultdict[str, set[asyncio.Task[object]]] = defaultdict(set)

    def __contains__(self, enrolment: str) -> bool:
        return enrolment in self._enrolments

    def replace(self, enrolments: Iterable[str]) -> None:
        """From now on exactly these are revoked. Calls of those that were not revoked before are cancelled."""
        before, self._enrolments = self._enrolments, frozenset(enrolments)
        for enrolment in self._enrolments - before:
            for call in tuple(self._calls.get(enrolment, ())):
                call.cancel()

    @asynccontextmanager
    async def ends(self, enrolment: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """The body is the call that `context` belongs to; it ends with a reason once the enrolment is revoked."""
        call = asyncio.current_task()
        if not enrolment or call is None:  # the certificate is of no enrolment
            yield
            return
        self._calls[enrolment].add(call)
        try:
            yield
        except asyncio.CancelledError:
            if enrolment not in self:  # the caller has hung up
                raise
            call.uncancel()
            # If a call is aborted while a message is being sent, gRPC sends no status and the caller waits for ever.
            await asyncio.sleep(SETTLE_S)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, REASON)
        finally:
            self._calls[enrolment].discard(call)
            if not self._calls[enrolment]:
                del self._calls[enrolment]
