from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.messages import ModelHeader, ModelRef
from fedgsp.transfers import chunks
from fedgsp.v1 import model_pb2
from tests.support.weights import TENSORS

HEADER = ModelHeader(ModelRef("m", 40), TENSORS)


@given(st.integers(0, 300) | st.sampled_from([2**14 - 1, 2**14, 2**21 - 1, 2**21]))
def test_data_are_what_protobuf_would_write_and_are_read_without_a_copy(length: int) -> None:
    content = bytes(length)
    message = chunks.data(memoryview(content))
    assert message == model_pb2.Chunk(data=content).SerializeToString()
    found = chunks.read(message)
    assert isinstance(found, memoryview)
    assert found == content
    assert found.obj is message or not length


def test_the_first_and_the_last_chunk_are_read_as_they_were_written() -> None:
    assert chunks.read(chunks.header(HEADER)) == HEADER
    assert chunks.read(chunks.digest(b"1234")) == chunks.Digest(b"1234")


@given(st.binary(max_size=40))
@example(b"\x12")
@example(b"\x12\x05abc")
@example(b"\x12\x01ab")
@example(b"\x12" + b"\x80" * 12)
@example(b"\x12\x01a\x12\x02bc")  # a field twice: the last one counts
@example(b"\x12\x01a\x1a\x01d")  # and of a oneof the last that is set
@example(b"\x12\x01a\x18\x07")  # an unknown field
def test_any_bytes_are_what_protobuf_says_they_are(message: bytes) -> None:
    try:
        expected = model_pb2.Chunk.FromString(message)
    except Exception:
        with pytest.raises(ValueError, match="no chunk"):
            chunks.read(message)
        return
    found = chunks.read(message)
    match expected.WhichOneof("part"):
        case "header":
            assert found == wire.decode(ModelHeader, expected.header)
        case "digest":
            assert found == chunks.Digest(expected.digest)
        case _:
            assert isinstance(found, memoryview)
            assert bytes(found) == expected.data
