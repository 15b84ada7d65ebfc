"""Small messages and files that claim to be large: what they cost those who read them."""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import os
import struct
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from google.protobuf.message import DecodeError

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.errors import DataError
from fedgsp.identity import TOP_SERVER
from fedgsp.limits import counting, items
from fedgsp.limits.counting import TooMuchError
from fedgsp.messages import NodeMessage, NodeReport, OrderProgress, TensorSpec
from fedgsp.tensors import spill
from fedgsp.tensors.spill import growing_room
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc, membership_pb2, membership_pb2_grpc, model_pb2, order_pb2
from fedgsp_node.tasks.reading import read_idx, read_npz
from tests.support.fuzzing import path, say, until
from tests.support.hellos import hello, membership
from tests.support.holders import data, serving_store
from tests.support.real_manager import ATTACH, HELLO, manager
from tests.support.serving import Served, serving
from top_server import grouping_service
from top_server.grouping_service import GroupingServicer
from top_server.nodes.servicer import MembershipServicer

JOIN = path("MembershipService", "Join")
#: Almost the largest message that gRPC takes.
BYTES = 4_000_000


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field on the wire."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def empty_items(number: int, count: int = BYTES // 2) -> bytes:
    """So many empty submessages of one field: two bytes each."""
    return bytes([number << 3 | 2, 0]) * count


#: What is sent, and its kind: lists of lists, lists of numbers, long texts, fields that nobody knows, one field often.
BOMBS: dict[str, tuple[bytes, Any]] = {
    "clients": (field(1, empty_items(5)), membership_pb2.NodeMessage),
    "clients in many hellos": (field(1, empty_items(5, 1_000)) * 1_900, membership_pb2.NodeMessage),
    "tensors": (field(1, empty_items(6)), membership_pb2.NodeMessage),
    "axes": (field(1, field(6, field(3, bytes(BYTES)))), membership_pb2.NodeMessage),
    "axes one by one": (field(1, field(6, b"\x18\x01" * (BYTES // 2))), membership_pb2.NodeMessage),
    "options": (field(1, empty_items(9)), membership_pb2.NodeMessage),
    "parts": (field(1, empty_items(11)), membership_pb2.NodeMessage),
    "a long name": (field(1, field(2, bytes(BYTES))), membership_pb2.NodeMessage),
    "progress": (field(2, empty_items(1)), order_pb2.NodeReport),
    "class counts": (field(3, field(4, field(1, bytes(BYTES)))), order_pb2.NodeReport),
    "networks": (field(3, field(5, field(2, bytes(BYTES)))), order_pb2.NodeReport),
    "metrics": (field(3, field(3, empty_items(6))), order_pb2.NodeReport),
    "recalled models": (field(3, field(6, empty_items(1))), order_pb2.NodeReport),
    "a long failure": (field(4, field(2, field(2, b"x" * BYTES))), order_pb2.NodeReport),
    "unknown fields": (b"\x78\x00" * (BYTES // 2), order_pb2.NodeReport),
    "unknown submessages": (empty_items(9), order_pb2.NodeReport),
    "a header": (field(1, empty_items(2)), model_pb2.Chunk),
    "a long id": (field(1, bytes(BYTES)), model_pb2.FetchRequest),
    "options of a training": (field(1, empty_items(3)), membership_pb2.TopServerMessage),
    "revoked enrolments": (field(5, empty_items(1)), membership_pb2.TopServerMessage),
    "networks of others": (field(10, field(3, bytes(BYTES))), order_pb2.Order),
    "groups": (field(1, empty_items(10)), grouping_pb2.AssignRequest),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_found_by_counting_before_it_is_decoded(bomb: str) -> None:
    message, kind = BOMBS[bomb]
    with pytest.raises(TooMuchError):
        items.check(message, kind.DESCRIPTOR)


@pytest.mark.parametrize("message", [b"\xff", b"\x0b", b"\x0a\x05ab", b"\x0a" + b"\xff" * 10, b"\x09ab", b"\x3f"])
def test_bytes_that_are_no_message_are_told_from_bombs(message: bytes) -> None:
    with pytest.raises(DecodeError):
        items.check(message, membership_pb2.NodeMessage.DESCRIPTOR)


def test_honest_messages_of_every_kind_pass() -> None:
    large = hello(
        clients=range(20_000),  # type: ignore[arg-type]
        tensors=tuple(TensorSpec(f"layer.{i}.weight", "float32", (64, 64, 3, 3)) for i in range(2_000)),
        task_options={f"option{i}": "x" * 200 for i in range(100)},
    )
    items.check(wire.encode(NodeMessage(large)).SerializeToString(), membership_pb2.NodeMessage.DESCRIPTOR)
    described = order_pb2.Done(described=order_pb2.Described(class_counts=[2**40] * 100_000))
    items.check(order_pb2.NodeReport(done=described).SerializeToString(), order_pb2.NodeReport.DESCRIPTOR)
    items.check(data(bytes(512 * 1024)).SerializeToString(), model_pb2.Chunk.DESCRIPTOR)
    rows = grouping_pb2.MatrixRows(name="gram", data=bytes(1 << 20))
    items.check(grouping_pb2.AssignRequest(rows=rows).SerializeToString(), grouping_pb2.AssignRequest.DESCRIPTOR)


def test_items_of_a_packed_list_are_counted_as_protobuf_counts_them() -> None:
    described = order_pb2.Described(class_counts=[0, 127, 128, 2**63, 5])
    kind, message = order_pb2.Described.DESCRIPTOR, described.SerializeToString()
    counting.check(message, kind, {"class_counts": 5})
    with pytest.raises(TooMuchError):
        counting.check(message, kind, {"class_counts": 4})


@asynccontextmanager
async def top_server() -> AsyncIterator[tuple[Served, Any]]:
    members, recorder = membership()

    def register(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(MembershipServicer(members), server)

    async with serving(register) as served:
        yield served, (members, recorder)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The kinds of messages that are decoded from now on."""
    kinds: list[type] = []
    real = wire.decode

    def decode(kind: type, proto: Any) -> Any:
        kinds.append(kind)
        return real(kind, proto)

    monkeypatch.setattr(wire, "decode", decode)
    return kinds


async def test_a_hello_of_two_million_clients_is_refused_and_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = watched(monkeypatch)
    async with top_server() as (served, (members, recorder)):
        for bomb in ("clients", "tensors", "axes", "unknown fields", "a long name"):
            call = served.channel.stream_stream(JOIN)()
            await say(call, [BOMBS[bomb][0]], "end")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert decoded == []
        assert recorder.events == []
        assert members.nodes == 0
        node = served.channel.stream_stream(JOIN)()  # the server still takes nodes
        await node.write(wire.encode(NodeMessage(hello())).SerializeToString())
        assert membership_pb2.TopServerMessage.FromString(await node.read()).HasField("welcome")
        node.cancel()


async def test_a_packed_message_is_not_unpacked_by_a_server() -> None:
    """gRPC would unpack it whole, and then say how long it is."""
    async with top_server() as (served, (members, _)):
        call = served.channel.stream_stream(JOIN)(compression=grpc.Compression.Gzip)
        await say(call, [bytes(64 << 20)], "end")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()
        assert members.nodes == 0


async def test_a_packed_answer_is_not_unpacked_by_its_reader() -> None:
    async def answer(asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        yield bytes(64 << 20)

    packed = grpc.method_handlers_generic_handler("a", {"b": grpc.stream_stream_rpc_method_handler(answer)})
    server = grpc.aio.server(compression=grpc.Compression.Gzip)
    server.add_generic_rpc_handlers((packed,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with Channels() as channels:
            call = (await channels.to(address, TOP_SERVER)).stream_stream("/a/b")()
            assert len(await call.read()) < 100_000
    finally:
        await server.stop(None)


async def test_six_progress_reports_of_millions_cost_the_manager_its_node_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with manager() as m:
        call = m.channel.stream_stream(ATTACH)()
        await call.write(wire.encode(HELLO).SerializeToString())
        assert await m.members.wait_for({"n9"}, 10) == set()
        decoded = watched(monkeypatch)
        await say(call, [BOMBS["progress"][0]] * 6, "end")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert decoded == []
        assert not m.members.attached("n9")


async def test_large_honest_reports_that_come_too_often_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [order_pb2.OrderProgress(mark=number) for number in range(10_000)]
    report = order_pb2.NodeReport(progress=order_pb2.Progress(orders=orders)).SerializeToString()
    decoded = watched(monkeypatch)
    async with manager() as m:
        call = m.channel.stream_stream(ATTACH)()
        await call.write(wire.encode(HELLO).SerializeToString())
        assert await m.members.wait_for({"n9"}, 10) == set()
        monkeypatch.setattr("group_manager.sessions.LEAST_BETWEEN_PROGRESS_S", 3600.0)
        for _ in range(20):
            await call.write(report)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    assert decoded.count(NodeReport) == 2  # the introduction, and one of the twenty
    assert decoded.count(OrderProgress) == 10_000


# --- disk and memory


def disk_of(folder: Path) -> int:
    """Bytes that the files without a name in a folder take."""
    taken = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()).startswith(str(folder)):
                taken = max(taken, link.stat().st_blocks * 512)
        except OSError:
            continue
    return taken


async def test_a_header_reserves_no_disk_for_bytes_that_never_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    size = 512 << 20
    tensors = [model_pb2.TensorSpec(name="w", dtype="float32", shape=[size // 4], trainable=True)]
    header = model_pb2.ModelHeader(ref=model_pb2.ModelRef(id="m", size=size), tensors=tensors)
    chunk = data(bytes(1 << 20)).SerializeToString()
    store, made = ModelStore(), asyncio.Event()

    def room(size: int) -> Any:
        made.set()
        return growing_room(size)

    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: 1 << 40, make_room=room) as served:
        call = served.channel.stream_stream(path("ModelService", "Upload"))()
        await call.write(model_pb2.Chunk(header=header).SerializeToString())
        await made.wait()
        assert disk_of(tmp_path) <= spill.FIRST_BYTES
        for _ in range(20):
            await call.write(chunk)
        assert disk_of(tmp_path) <= 2 * max(spill.FIRST_BYTES, 21 << 20)
        call.cancel()


def test_disk_grows_with_the_bytes_that_came(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    array = growing_room(256 << 20)
    taken = []
    for end in (1, 17 << 20, 18 << 20, 60 << 20, 256 << 20, 1 << 40):
        spill.reserve(array, end)
        taken.append(disk_of(tmp_path) >> 20)
    assert taken == [16, 32, 32, 64, 256, 256]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_found_before_it_is_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    array = growing_room(128 << 20)
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space"):
        spill.reserve(array, 128 << 20)
    assert spill._mapping(growing_room(128 << 20)) is None
    assert len(spill.spilling_room(128 << 20)) == 128 << 20


async def test_unfinished_questions_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_service, "MAX_MATRIX_BYTES", 8 << 20)
    servicer = GroupingServicer()

    def register(server: grpc.aio.Server) -> None:
        grouping_pb2_grpc.add_GroupingServiceServicer_to_server(servicer, server)

    clients = 512
    question = grouping_pb2.AssignQuestion(
        grouping="icg",
        clients=range(clients),
        sizes=[1] * clients,
        matrices=[grouping_pb2.MatrixSpec(name="gram", dtype="float64", rows=clients, columns=1024)],
    )
    rows = grouping_pb2.AssignRequest(rows=grouping_pb2.MatrixRows(name="gram", data=bytes(1 << 20)))
    async with serving(register) as served:
        ask = served.channel.stream_unary(path("GroupingService", "Assign"))
        calls = []
        for _ in range(4):
            call = ask()
            await call.write(grouping_pb2.AssignRequest(question=question).SerializeToString())
            for _ in range(3):
                await call.write(rows.SerializeToString())
            calls.append(call)
        # Some of them are told that there are too many questions; the others wait, with less than the limit together.
        done, _ = await asyncio.wait(
            [asyncio.create_task(call.code()) for call in calls], return_when=asyncio.FIRST_COMPLETED, timeout=10
        )
        assert done
        assert all(task.result() is grpc.StatusCode.INVALID_ARGUMENT for task in done)
        assert servicer._reading._bytes <= 8 << 20
        for call in calls:
            call.cancel()
        await until(lambda: not servicer._reading._bytes)


# --- files


def npz(path: Path, write: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        write(archive)
    return path


def test_an_archive_of_kilobytes_that_unpacks_to_megabytes_is_not_unpacked(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (120 << 20,)})

    def write(archive: zipfile.ZipFile) -> None:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(120):
                member.write(bytes(1 << 20))

    bomb = npz(tmp_path / "bomb.npz", write)
    assert bomb.stat().st_size < 200_000
    with pytest.raises(DataError, match="would unpack to 125,82"):
        read_npz(bomb, ["x"])


def test_an_array_that_says_that_it_is_larger_than_its_bytes_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 45,)})
    bomb = npz(tmp_path / "bomb.npz", lambda archive: archive.writestr("x.npy", header.getvalue() + b"12345678"))
    with pytest.raises(DataError, match="holds 8 bytes"):
        read_npz(bomb, ["x"])


def test_an_idx_file_is_unpacked_no_further_than_it_may_be(tmp_path: Path) -> None:
    bomb, longer = tmp_path / "bomb.gz", tmp_path / "longer.gz"
    with gzip.open(bomb, "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, 1 << 20, 28, 28) + bytes(1 << 20))
    with pytest.raises(DataError, match="would unpack to 822,083,584"):
        read_idx(bomb, 3)
    with gzip.open(longer, "wb") as file:
        file.write(struct.pack(">4B1I", 0, 0, 8, 1, 4) + bytes(1 << 20))
    with pytest.raises(DataError):
        read_idx(longer, 1)


def test_data_that_compress_well_are_still_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((1000, 28, 28), np.uint8), y=np.zeros(1000, np.int64))
    held = read_npz(tmp_path / "zeros.npz", ["x", "y"])
    assert held["x"].shape == (1000, 28, 28)
