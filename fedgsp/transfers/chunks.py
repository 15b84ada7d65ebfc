"""The messages of a stream of weights, as bytes: equal to what protobuf reads and writes, but with fewer copies.

A stream consists of a header, the bytes of the buffer in order, and their digest. The holder computes the digest while
it sends the bytes.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from fedgsp import wire
from fedgsp.limits import items
from fedgsp.messages import ModelHeader
from fedgsp.v1 import model_pb2

#: The service that moves weights.
SERVICE = "fedgsp.v1.ModelService"
_DATA = b"\x12"  # field 2, length-delimited


@dataclass(frozen=True, slots=True)
class Digest:
    """The end of a stream."""

    value: bytes


Part = ModelHeader | memoryview | Digest


def header(value: ModelHeader) -> bytes:
    """The first chunk."""
    return model_pb2.Chunk(header=wire.encode(value)).SerializeToString()


def data(content: memoryview) -> bytes:
    """A chunk with bytes of the buffer, which are copied once."""
    return b"".join((_DATA, _varint(len(content)), content))


def digest(value: bytes) -> bytes:
    """The last chunk."""
    return model_pb2.Chunk(digest=value).SerializeToString()


def receipt(base: int | None) -> model_pb2.Receipt:
    """The answer of a receiver that chooses this base; None if it refuses."""
    return model_pb2.Receipt(refused=base is None, base=base or 0)


def said(answer: model_pb2.Receipt) -> int | None:
    """The inverse of `receipt`, for an answer that is not a sign of life."""
    return None if answer.refused else answer.base


def is_data(message: bytes) -> bool:
    """Whether a message is nothing but bytes of the buffer."""
    return _start_of_data(message) > 0


def read(message: bytes) -> Part:
    """The content of a chunk. Data are a view of the message, empty for an empty chunk. ValueError for other bytes."""
    start = _start_of_data(message)
    if start:
        return memoryview(message)[start:]
    try:
        items.check(message, model_pb2.Chunk.DESCRIPTOR)
        chunk = model_pb2.Chunk.FromString(message)
    except DecodeError as error:
        raise ValueError("a message is no chunk") from error
    match chunk.WhichOneof("part"):
        case "header":
            return wire.decode(ModelHeader, chunk.header)
        case "digest":
            return Digest(chunk.digest)
    return memoryview(chunk.data)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _start_of_data(message: bytes) -> int:
    """Index of the first data byte in a message of exactly one data field; 0 for other messages, left to protobuf."""
    if message[:1] != _DATA:
        return 0
    length = 0
    for index, byte in enumerate(message[1:11]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            start = index + 2
            return start if len(message) - start == length else 0
    return 0
