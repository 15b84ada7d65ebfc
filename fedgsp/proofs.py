"""Whether the server of a call is the process that the caller means; see `fedgsp.tickets` for what it answers."""

from typing import Any

from fedgsp.access import ANSWER
from fedgsp.within import within

#: How long a call that was refused may take to end, in seconds.
_ENDING_S = 1.0


async def answer_of(call: Any) -> bytes | None:
    """What the server of a call answers to the question in its metadata; empty if it answers nothing.

    None: the call has ended, and whoever reads it learns why.
    """
    said = dict(await call.initial_metadata() or ())
    if ANSWER in said:
        return bytes(said[ANSWER])
    try:
        await within(_ENDING_S, call.code())
    except TimeoutError:
        return b""
    return None
