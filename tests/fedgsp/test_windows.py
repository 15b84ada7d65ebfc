"""Models that go from process to process through memory, and what happens where that cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc.aio
import numpy as np
import pytest
from support.holders import PLENTY, Says, digest, refused, registered, serving_store
from support.serving import serving
from support.weights import some_weights, vector

from fedgsp import chunks, model_streams, windows, wire
from fedgsp.encoding import rounded
from fedgsp.messages import FailureCode, ModelHeader, ModelRef
from fedgsp.model_service import fetch, upload
from fedgsp.model_store import ModelStore
from fedgsp.v1 import model_pb2, model_pb2_grpc
from fedgsp.weights import Weights
from fedgsp.windows import SLOT_BYTES, WINDOW_BYTES

pytestmark = pytest.mark.skipif(not windows.machine(), reason="no windows on this system")

#: Through every slot more than once, and not a whole number of slots.
ELEMENTS = (2 * WINDOW_BYTES + 12_345 * 4) // 4
LARGE = some_weights(7, vector(ELEMENTS))


@pytest.fixture(autouse=True)
def none_spare() -> Iterator[None]:
    windows.drop_spare()
    yield
    windows.drop_spare()


class Ways:
    """Counts the messages of models that this process makes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.in_window = self.travelled = 0
        made_data, made_in_window = chunks.data, chunks.in_window

        def data(content: memoryview) -> bytes:
            self.travelled += 1
            return made_data(content)

        def in_window(size: int) -> bytes:
            self.in_window += 1
            return made_in_window(size)

        patch.setattr(chunks, "data", data)
        patch.setattr(chunks, "in_window", in_window)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


def windows_open() -> int:
    """Descriptors of windows that this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:fedgsp-")
    return found


async def fetched(weights: Weights) -> Weights:
    store = ModelStore()
    store.put("m", weights)
    async with serving_store(store) as served:
        return await fetch(served.channel, "m", weights.tensors, weights.buffer.nbytes)


async def uploaded(weights: Weights, receiver: str) -> Weights:
    store = ModelStore()
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        await upload(served.channel, "m", weights, receiver=receiver)
    return store.held("m")


def unknown(weights: Weights) -> Weights:
    """The same, with a digest that nobody has computed yet."""
    return Weights(weights.tensors, weights.buffer, bfloat16=weights.bfloat16)


# --- what goes right


@pytest.mark.parametrize(
    "elements", [windows.LEAST_BYTES // 4, SLOT_BYTES // 4, SLOT_BYTES // 4 + 2, 2 * SLOT_BYTES // 4, ELEMENTS]
)
@pytest.mark.parametrize("bfloat16", [False, True])
async def test_a_model_comes_as_it_was_through_a_window(elements: int, bfloat16: bool, ways: Ways) -> None:
    weights = some_weights(elements, vector(elements))
    if bfloat16:
        weights = rounded(weights)
    for came in (await fetched(unknown(weights)), await uploaded(unknown(weights), windows.machine())):
        assert np.array_equal(came.buffer, weights.buffer)
        assert came.digest == weights.digest
        assert came.bfloat16 == bfloat16
    assert ways.in_window
    assert not ways.travelled


async def test_a_small_model_travels(ways: Ways) -> None:
    await fetched(some_weights(3, vector(windows.LEAST_BYTES // 4 - 2)))
    assert (ways.in_window, ways.travelled) == (0, 2)


async def test_a_model_for_another_machine_travels(ways: Ways) -> None:
    assert (await uploaded(LARGE, "elsewhere")).digest == LARGE.digest
    assert (await uploaded(LARGE, "")).digest == LARGE.digest
    assert not ways.in_window


async def test_every_model_travels_where_only_the_network_is_allowed(ways: Ways) -> None:
    here = windows.machine()
    windows.choose("network")
    try:
        assert windows.machine() == ""
        await fetched(LARGE)
        await uploaded(LARGE, here)
    finally:
        windows.choose("auto")
    assert not ways.in_window


async def test_one_window_serves_one_model_after_another() -> None:
    for _ in range(3):
        await fetched(unknown(LARGE))
    assert windows_open() == 2  # its descriptor, and that of its mapping


async def test_models_that_leave_at_once_have_windows_of_their_own() -> None:
    store, models = ModelStore(), [some_weights(seed, vector(ELEMENTS)) for seed in range(4)]
    for number, weights in enumerate(models):
        store.put(str(number), weights)
    async with serving_store(store) as served:
        asked = (fetch(served.channel, str(number), None, PLENTY) for number in range(4))
        came = await asyncio.gather(*asked)
    assert [weights.digest for weights in came] == [weights.digest for weights in models]


async def test_another_process_fetches_through_a_window() -> None:
    """The real thing: two processes."""
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        code = (
            "import asyncio, sys\n"
            "from fedgsp import chunks, model_streams, windows\n"
            "from fedgsp.channels import Channels\n"
            "from fedgsp.model_service import fetch\n"
            "async def main():\n"
            "    opened, windows.opened = [], lambda name, open=windows.opened: (opened.append(name), open(name))[1]\n"
            "    async with Channels() as channels:\n"
            "        weights = await fetch(channels.to(sys.argv[1]), 'm', None, 1 << 40)\n"
            "    print(len(opened), weights.digest.hex())\n"
            "asyncio.run(main())\n"
        )
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, served.address, stdout=subprocess.PIPE
        )
        said, _ = await child.communicate()
    assert said.decode().split() == ["1", LARGE.digest.hex()]


# --- what cannot be had


async def test_a_model_travels_if_its_receiver_cannot_open_the_window(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(name: str) -> windows.Window:
        raise PermissionError(13, "not yours", name)

    monkeypatch.setattr(windows, "opened", cannot)
    assert (await fetched(unknown(LARGE))).digest == LARGE.digest
    assert (await uploaded(unknown(LARGE), windows.machine())).digest == LARGE.digest
    assert not ways.in_window
    assert ways.travelled


async def test_a_model_travels_if_the_system_gives_no_window(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    assert (await fetched(unknown(LARGE))).digest == LARGE.digest
    assert not ways.in_window


async def test_a_window_whose_receiver_went_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still look into it."""
    gone, kept = asyncio.Event(), windows.opened

    def opened(name: str) -> windows.Window:
        gone.set()
        return kept(name)

    monkeypatch.setattr(windows, "opened", opened)
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        task = asyncio.create_task(fetch(served.channel, "m", None, PLENTY))
        await gone.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await fetch(served.channel, "m", None, PLENTY)).digest == LARGE.digest
    del task
    gc.collect()
    assert windows_open() <= 2


async def test_a_receiver_that_never_says_it_has_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_streams, "CHUNK_TIMEOUT_S", 0.05)
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        call = model_pb2_grpc.ModelServiceStub(served.channel).Fetch()
        await call.write(model_pb2.FetchRequest(model_id="m", machine=windows.machine()))
        assert (await call.read()).header.window
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert caught.value.details() == "no receipt of what is in the window"


async def test_a_receiver_that_hangs_up_without_a_receipt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        call = model_pb2_grpc.ModelServiceStub(served.channel).Fetch()
        await call.write(model_pb2.FetchRequest(model_id="m", machine=windows.machine()))
        await call.done_writing()
        assert (await call.read()).header.window
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


# --- holders that say what is not so


def offering(name: str) -> model_pb2.Chunk:
    return model_pb2.Chunk(
        header=wire.encode(ModelHeader(ModelRef("m", LARGE.buffer.nbytes), LARGE.tensors, window=name))
    )


async def answer_to(*said: model_pb2.Chunk) -> Any:
    async with serving(registered(Says(said, then="silence"))) as served:
        return await refused(fetch(served.channel, "m", None, PLENTY))


@contextlib.contextmanager
def lent() -> Iterator[windows.Window]:
    window = windows.lend()
    assert window is not None
    yield window


@pytest.mark.parametrize("size", [0, SLOT_BYTES + 1, 2**32 - 1])
async def test_no_more_is_read_than_a_slot_holds(size: int) -> None:
    with lent() as window:
        failure = await answer_to(offering(window.name), model_pb2.Chunk(in_window=size))
    assert failure.code is FailureCode.BAD_STREAM
    assert "holds no bytes" in failure.detail


async def test_what_is_in_no_window_is_refused() -> None:
    failure = await answer_to(offering(""), model_pb2.Chunk(in_window=8))
    assert failure.code is FailureCode.BAD_STREAM


async def test_more_than_was_announced_is_refused_from_a_window_too() -> None:
    with lent() as window:
        failure = await answer_to(offering(window.name), *(model_pb2.Chunk(in_window=SLOT_BYTES) for _ in range(6)))
    assert failure.code is FailureCode.TOO_LONG


async def test_what_changes_in_a_window_while_it_is_read_has_another_digest() -> None:
    with lent() as window:
        whole = [model_pb2.Chunk(in_window=SLOT_BYTES)] * (LARGE.buffer.nbytes // SLOT_BYTES)
        rest = model_pb2.Chunk(in_window=LARGE.buffer.nbytes % SLOT_BYTES)
        failure = await answer_to(offering(window.name), *whole, rest, digest(LARGE.digest))
    assert failure.code is FailureCode.WRONG_DIGEST


@pytest.mark.parametrize(
    "name", ["", "1", "1/2", "../../etc/passwd", "1/2/" + "0" * 31, "0/1/" + "0" * 32, "x" * 10_000]
)
def test_a_name_that_is_none_opens_nothing(name: str) -> None:
    with pytest.raises(OSError, match="names no window"):
        windows.opened(name)


def test_only_a_window_of_that_token_is_opened(tmp_path: Any) -> None:
    token = "0" * 32
    other = tmp_path / f"memfd:fedgsp-{token}"
    other.write_bytes(bytes(WINDOW_BYTES))
    reading, writing = os.pipe()
    with lent() as window, other.open("rb") as file:
        process, number, _ = window.name.split("/")
        for descriptor in (int(number), file.fileno(), reading):
            with pytest.raises(OSError, match="is not window"):
                windows.opened(f"{process}/{descriptor}/{token}")
    os.close(reading)
    os.close(writing)
    with pytest.raises(FileNotFoundError):
        windows.opened(f"{process}/{1 << 20}/{token}")


@pytest.mark.parametrize(("size", "sealed"), [(WINDOW_BYTES, False), (WINDOW_BYTES - mmap.PAGESIZE, True)])
def test_memory_that_its_owner_could_take_away_is_not_opened(size: int, sealed: bool) -> None:
    """Reading where a file has no more pages ends a process by a signal."""
    token = "a" * 32
    descriptor = os.memfd_create(f"fedgsp-{token}", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        if sealed:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with pytest.raises(OSError, match="is no window"):
            windows.opened(f"{os.getpid()}/{descriptor}/{token}")
    finally:
        os.close(descriptor)


def test_a_window_can_only_be_read_by_who_opened_it() -> None:
    with lent() as window:
        seen = windows.opened(window.name)
        window.slot(1)[:3] = b"abc"
        assert bytes(seen.slot(3)[:3]) == b"abc"  # slots take turns
        with pytest.raises(TypeError, match="read-only"):
            seen.slot(0)[:1] = b"x"


def test_a_window_cannot_be_shrunk() -> None:
    with lent() as window, pytest.raises(PermissionError):
        os.truncate(int(window.name.split("/")[1]), 0)


def test_another_network_is_another_machine() -> None:
    ours = windows.machine()
    code = "from fedgsp import windows; print(windows.machine())"
    same = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert same.stdout.strip() == ours
    other = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if other.returncode:
        pytest.skip(f"no networks of one's own here: {other.stderr.strip()}")
    assert other.stdout.strip() not in ("", ours)


async def test_uploads_that_are_refused_say_why_even_through_a_window() -> None:
    async with serving_store(ModelStore(), may_upload=lambda _: False, max_bytes=lambda: PLENTY) as served:
        failure = await refused(upload(served.channel, "m", LARGE, receiver=windows.machine()))
    assert failure.code is FailureCode.BAD_STREAM
    assert "was not asked for" in failure.detail
