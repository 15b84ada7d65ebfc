"""The limit of a pause within the transfer of a model."""

from collections.abc import Awaitable
from typing import TypeVar

from fedgsp.messages import FailureCode
from fedgsp.tensors.weights import WeightsError
from fedgsp.within import within

#: Longest pause between two chunks of a stream, in seconds.
CHUNK_TIMEOUT_S = 30.0

T = TypeVar("T")


async def in_time(work: Awaitable[T], awaited: str) -> T:
    """The result of `work`, which `awaited` names; raises WeightsError if it takes longer than a pause may."""
    try:
        return await within(CHUNK_TIMEOUT_S, work)
    except TimeoutError:
        raise WeightsError(FailureCode.STALLED, f"no {awaited} for {CHUNK_TIMEOUT_S:.0f} s") from None
