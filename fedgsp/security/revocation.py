"""Enrolments that are not good any more: their holders may make no further calls, and their open calls end."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc

from fedgsp.connections.endings import end_call

#: What a caller is told whose certificate was revoked.
REASON = "the certificate of this node was revoked: ask for a new invitation"


class Revocations:
    """The revoked enrolments, as this process knows them, and the open calls of all enrolments."""

    def __init__(self) -> None:
        self._enrolments: frozenset[str] = frozenset()
        self._calls: defaultdict[str, set[asyncio.Task[object]]] = defaultdict(set)

    def __contains__(self, enrolment: str) -> bool:
        return enrolment in self._enrolments

    def replace(self, enrolments: Iterable[str]) -> None:
        """From now on exactly these are revoked. Calls of those that were not revoked before end."""
        before, self._enrolments = self._enrolments, frozenset(enrolments)
        for enrolment in self._enrolments - before:
            for call in tuple(self._calls.get(enrolment, ())):
                end_call(call, grpc.StatusCode.PERMISSION_DENIED, REASON)

    @contextmanager
    def ends(self, enrolment: str) -> Iterator[None]:
        """The body is the call that the current task serves; it ends with a reason once the enrolment is revoked."""
        call = asyncio.current_task()
        if not enrolment or call is None:  # the certificate is of no enrolment
            yield
            return
        self._calls[enrolment].add(call)
        try:
            yield
        finally:
            self._calls[enrolment].discard(call)
            if not self._calls[enrolment]:
                del self._calls[enrolment]
