"""Whether the server of a call is the process that the caller means; see `tickets.py` for what it answers."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from fedgsp.security.access import ANSWER
from fedgsp.within import within

#: How long a call that was refused may take to end, in seconds.
_ENDING_S = 1.0


class UnprovenError(Exception):
    """The server of a call has not shown who it is. Nothing that it says counts."""


async def prove(call: Any, messages: AsyncIterator[Any], is_answer: Callable[[bytes], bool]) -> None:
    """Waits until the server of a call has answered the question in its metadata. Call it before the first message.

    Raises UnprovenError if the answer is wrong or missing, and AioRpcError with the reason if the call was refused.
    """
    said = dict(await call.initial_metadata() or ())
    if is_answer(bytes(said.get(ANSWER, b""))):
        return
    if ANSWER not in said:
        with contextlib.suppress(TimeoutError):
            await within(_ENDING_S, call.code())
            if is_answer(bytes(dict(await call.trailing_metadata() or ()).get(ANSWER, b""))):
                return
            async for _ in messages:  # raises the reason for which the call has ended
                pass
    raise UnprovenError
