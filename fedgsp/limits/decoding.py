"""Decodes messages of a peer without holding up the event loop."""

import asyncio
from typing import Any, TypeVar

from fedgsp import wire
from fedgsp.limits.gate import LARGE_BYTES

T = TypeVar("T")


async def decoded(kind: type[T], proto: Any) -> T:
    """The value of a protobuf message; a large one is decoded in a thread."""
    if proto.ByteSize() > LARGE_BYTES:
        return await asyncio.to_thread(wire.decode, kind, proto)
    return wire.decode(kind, proto)
