"""Counts the items of what a caller receives before it is decoded, as `gate` does for what a server receives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError, Message

from fedgsp.limits import items
from fedgsp.limits.counting import TooMuchError


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that was not decoded."""

    why: str


def stream(channel: grpc.aio.Channel, path: str, kind: type[Message], of_one: bool = False) -> Callable[..., Any]:
    """The RPC at a path, from stream to stream, or `of_one` request; its answers are of a kind, or `Unreadable`."""
    call = channel.unary_stream if of_one else channel.stream_stream
    return call(  # type: ignore[no-any-return]
        path, request_serializer=lambda message: message.SerializeToString(), response_deserializer=reader(kind)
    )


def reader(kind: type[Message]) -> Callable[[bytes], Message | Unreadable]:
    """Reads messages of a kind. It never raises: gRPC would log a traceback, and give None in place of the reason."""

    def read(message: bytes) -> Message | Unreadable:
        try:
            items.check(message, kind.DESCRIPTOR)  # type: ignore[arg-type]
            return kind.FromString(message)
        except TooMuchError as error:
            return Unreadable(f"is too large: {error}")
        except DecodeError:
            return Unreadable("cannot be read")

    return read
