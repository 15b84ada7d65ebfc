"""The messages of a weights stream as bytes: what protobuf reads and writes, without its copies.

A stream is a header, the bytes of the buffer in order, and their digest, which the holder computes as they travel.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from fedgsp import wire
from fedgsp.messages import ModelHeader
from fedgsp.v1 import model_pb2

_DATA = b"\x12"  # field 2, length-delimited


@dataclass(frozen=True, slots=True)
class Digest:
    """The end of a stream."""

    value: bytes


@dataclass(frozen=True, slots=True)
class InWindow:
    """So many bytes of the buffer are in the next slot of the window that the header named."""

    size: int


Part = ModelHeader | memoryview | InWindow | Digest


def header(value: ModelHeader) -> bytes:
    """The first chunk."""
    return model_pb2.Chunk(header=wire.encode(value)).SerializeToString()


def data(content: memoryview) -> bytes:
    """A chunk of the buffer, copied once."""
    return b"".join((_DATA, _varint(len(content)), content))


def in_window(size: int) -> bytes:
    """Stands for bytes of the buffer that are in a window."""
    return model_pb2.Chunk(in_window=size).SerializeToString()


def digest(value: bytes) -> bytes:
    """The last chunk."""
    return model_pb2.Chunk(digest=value).SerializeToString()


def read(message: bytes) -> Part:
    """What a chunk holds; data are a view of it, and empty if it holds nothing. Raises ValueError for other bytes."""
    start = _start_of_data(message)
    if start:
        return memoryview(message)[start:]
    try:
        chunk = model_pb2.Chunk.FromString(message)
    except DecodeError as error:
        raise ValueError("a message is no chunk") from error
    match chunk.WhichOneof("part"):
        case "header":
            return wire.decode(ModelHeader, chunk.header)
        case "digest":
            return Digest(chunk.digest)
        case "in_window":
            return InWindow(chunk.in_window)
    return memoryview(chunk.data)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _start_of_data(message: bytes) -> int:
    """Where the data begin in a message of exactly one data field; 0 for any other, which protobuf may read."""
    if message[:1] != _DATA:
        return 0
    length = 0
    for index, byte in enumerate(message[1:11]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            start = index + 2
            return start if len(message) - start == length else 0
    return 0
