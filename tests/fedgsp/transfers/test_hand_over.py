"""Models that go through a pipe, and what happens where that cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgsp.messages import TensorSpec
from fedgsp.tensors import spill
from fedgsp.tensors.encoding import rounded
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import chunks, piped, pipes
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.pipes import PIPE_BYTES, Inlet, Outlet
from tests.support.handed_over import ELEMENTS, LARGE, an_outlet, fetched, pipes_open, unknown, uploaded
from tests.support.holders import PLENTY, serving_store
from tests.support.weights import some_weights, vector

pytestmark = pytest.mark.skipif(not pipes.machine(), reason="no pipes of this kind on this system")


class Ways:
    """Counts the messages with bytes of models, and the bytes in pipes, that this process makes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.piped = self.travelled = 0
        made_data, put = chunks.data, Outlet.put

        def data(content: memoryview) -> bytes:
            self.travelled += 1
            return made_data(content)

        def counted(outlet: Outlet, part: NDArray[np.uint8]) -> int:
            done = put(outlet, part)
            self.piped += done
            return done

        patch.setattr(chunks, "data", data)
        patch.setattr(Outlet, "put", counted)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(monkeypatch)


@pytest.mark.parametrize("elements", [pipes.LEAST_BYTES // 4, PIPE_BYTES // 4 + 2, 2 * PIPE_BYTES // 4, ELEMENTS])
@pytest.mark.parametrize("bfloat16", [False, True])
async def test_a_model_comes_as_it_was_through_a_pipe(elements: int, bfloat16: bool, ways: Ways) -> None:
    weights = some_weights(elements, vector(elements))
    if bfloat16:
        weights = rounded(weights)
    for came in (await fetched(unknown(weights)), await uploaded(unknown(weights), pipes.machine())):
        assert np.array_equal(came.buffer, weights.buffer)
        assert came.digest == weights.digest
        assert came.bfloat16 == bfloat16
    assert ways.piped == 2 * weights.buffer.nbytes
    assert not ways.travelled


async def test_a_small_model_travels_in_one_message(ways: Ways) -> None:
    weights = some_weights(3, vector(pipes.LEAST_BYTES // 4 - 2))
    await fetched(weights)
    await uploaded(weights, pipes.machine())
    assert not ways.piped
    assert ways.travelled == 2


async def test_many_small_tensors_come_as_they_were(ways: Ways) -> None:
    tensors = tuple(
        spec
        for number in range(60)
        for spec in (TensorSpec(f"w{number}", "float32", (90_001,)), TensorSpec(f"n{number}", "int64", (1,)))
    )
    weights = rounded(some_weights(2, tensors))
    came = await fetched(unknown(weights))
    assert np.array_equal(came.buffer, weights.buffer)
    assert ways.piped == weights.buffer.nbytes


@pytest.mark.parametrize("most", [PIPE_BYTES, 100_003])
@pytest.mark.parametrize("way", ["fetched", "uploaded"])
async def test_a_model_in_a_file_comes_as_it_was_into_a_file(
    way: str, most: int, ways: Ways, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are brought in by another thread, so that nobody waits for the disk at the pipe."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(spill, "SPILLED_BYTES", 1 << 20)
    put, touched, threads = Outlet.put, spill.touch, []

    def noted(array: NDArray[np.uint8], to_write: bool = False) -> None:
        threads.append((threading.current_thread(), to_write))
        touched(array, to_write)

    monkeypatch.setattr(piped, "touch", noted)
    monkeypatch.setattr(piped, "lacks_pages", spill.is_in_file)  # as on a machine that is short of memory
    monkeypatch.setattr(Outlet, "put", lambda outlet, part: put(outlet, part[:most]))
    store, models = ModelStore(), ModelStore()
    models.put("m", unknown(LARGE).at_rest())
    if way == "fetched":
        async with serving_store(models) as served:
            came = await fetch(served.channel, "m", None, PLENTY, make_room=spill.growing_room)
    else:
        room = {"make_room": spill.growing_room}
        async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY, **room) as served:
            await upload(served.channel, "m", models.held("m"), receiver=pipes.machine())
        came = store.held("m")
    assert spill.is_in_file(came.buffer)
    assert np.array_equal(came.buffer, LARGE.buffer)
    assert not ways.travelled
    assert {to_write for _, to_write in threads} == {False, True}
    assert threading.current_thread() not in {thread for thread, _ in threads}


async def test_a_model_for_another_machine_travels(ways: Ways) -> None:
    assert (await uploaded(LARGE, "elsewhere")).digest == LARGE.digest
    assert (await uploaded(LARGE, "")).digest == LARGE.digest
    assert not ways.piped


async def test_every_model_travels_where_only_the_network_is_allowed(ways: Ways) -> None:
    here = pipes.machine()
    pipes.choose("network")
    try:
        assert pipes.machine() == ""
        await fetched(LARGE)
        await uploaded(LARGE, here)
    finally:
        pipes.choose("auto")
    assert not ways.piped


async def test_no_pipe_is_left_after_a_model() -> None:
    await fetched(unknown(LARGE))
    before = pipes_open()
    for _ in range(3):
        await fetched(unknown(LARGE))
        await uploaded(unknown(LARGE), pipes.machine())
    assert pipes_open() == before


async def test_models_that_leave_at_once_have_pipes_of_their_own(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is more than there may be pipes travels."""
    monkeypatch.setattr(pipes, "MOST", 3)
    count = pipes.MOST + 2
    store, models = ModelStore(), [some_weights(seed, vector(ELEMENTS)) for seed in range(count)]
    for number, weights in enumerate(models):
        store.put(str(number), weights)
    async with serving_store(store) as served:
        asked = (fetch(served.channel, str(number), None, PLENTY) for number in range(count))
        came = await asyncio.gather(*asked)
    assert [weights.digest for weights in came] == [weights.digest for weights in models]
    assert ways.piped
    assert ways.travelled


async def test_another_process_fetches_through_a_pipe() -> None:
    """The real thing: two processes."""
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        code = (
            "import asyncio, sys\n"
            "from fedgsp.transfers import chunks, model_streams, pipes\n"
            "from fedgsp.connections.channels import Channels\n"
            "from fedgsp.identity import TOP_SERVER\n"
            "from fedgsp.transfers.model_calls import fetch\n"
            "async def main():\n"
            "    opened, pipes.opened = [], lambda name, open=pipes.opened: (opened.append(name), open(name))[1]\n"
            "    async with Channels() as channels:\n"
            "        weights = await fetch(await channels.to(sys.argv[1], TOP_SERVER), 'm', None, 1 << 40)\n"
            "    print(len(opened), weights.digest.hex())\n"
            "asyncio.run(main())\n"
        )
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, served.address, stdout=subprocess.PIPE
        )
        said, _ = await child.communicate()
    assert said.decode().split() == ["1", LARGE.digest.hex()]


async def test_a_model_travels_if_its_receiver_cannot_open_the_pipe(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(name: str) -> pipes.Inlet:
        raise PermissionError(13, "not yours", name)

    monkeypatch.setattr(pipes, "opened", cannot)
    assert (await fetched(unknown(LARGE))).digest == LARGE.digest
    assert (await uploaded(unknown(LARGE), pipes.machine())).digest == LARGE.digest
    assert not ways.piped
    assert ways.travelled


async def test_a_model_travels_if_the_system_gives_no_pipe(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    assert (await fetched(unknown(LARGE))).digest == LARGE.digest
    assert not ways.piped


async def test_a_receiver_that_goes_leaves_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    await fetched(unknown(LARGE))
    before, kept, opened = pipes_open(), pipes.opened, asyncio.Event()

    def opening(name: str) -> pipes.Inlet:
        opened.set()
        return kept(name)

    monkeypatch.setattr(pipes, "opened", opening)
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        task = asyncio.create_task(fetch(served.channel, "m", None, PLENTY))
        await opened.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await fetch(served.channel, "m", None, PLENTY)).digest == LARGE.digest
    assert pipes_open() == before


async def test_a_pipe_that_was_refused_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow receiver that cannot open it would use up the pipes that others could have."""
    open_at_the_first_bytes, made = [], chunks.data

    def cannot(name: str) -> pipes.Inlet:
        raise PermissionError(13, "not yours", name)

    def data(content: memoryview) -> bytes:
        open_at_the_first_bytes.append(pipes_open())
        return made(content)

    before = pipes_open()
    monkeypatch.setattr(pipes, "opened", cannot)
    monkeypatch.setattr(chunks, "data", data)
    await fetched(unknown(LARGE))
    assert open_at_the_first_bytes[0] == before


async def test_a_transfer_tells_of_its_progress() -> None:
    store, told = ModelStore(), []
    async with serving_store(store, may_upload=lambda _: True, max_bytes=lambda: PLENTY) as served:
        await upload(served.channel, "m", LARGE, lambda: told.append("sent"), receiver=pipes.machine())
        await fetch(served.channel, "m", None, PLENTY, lambda: told.append("came"))
    assert told.count("sent") >= LARGE.buffer.nbytes // piped.AHEAD_BYTES
    assert told.count("came") >= LARGE.buffer.nbytes // piped.AHEAD_BYTES


async def confirm(_: int | None = 0) -> int | None:
    return 0


async def nothing() -> None:
    pass


def ignore(_: NDArray[np.uint8]) -> None:
    pass


@pytest.mark.parametrize("end", ["sender", "receiver"])
async def test_others_take_their_turns_while_the_other_end_is_as_fast(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no put and no take finds a pipe that is full or empty."""
    turn = threading.Event()

    async def others() -> None:
        while True:
            turn.set()
            await asyncio.sleep(0)

    def after_others(size: int) -> int:
        turn.clear()
        assert turn.wait(10)
        return min(size, PIPE_BYTES)

    with contextlib.closing(an_outlet()) as outlet:
        monkeypatch.setattr(Outlet, "put", lambda _, part: after_others(part.nbytes))
        monkeypatch.setattr(Inlet, "take", lambda _, into: after_others(into.nbytes))
        beside = asyncio.create_task(others())
        if end == "sender":
            await piped.put_all(outlet, LARGE, confirm, "m", lambda: None)
        else:
            into = Weights(LARGE.tensors, np.empty_like(LARGE.buffer))
            await piped.Piped("m", into, pipes.opened(outlet.name)).take_all(nothing, ignore, nothing)
    beside.cancel()


@pytest.mark.parametrize("end", ["sender", "receiver"])
async def test_a_thread_comes_back_although_the_other_end_is_as_fast(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others need threads, too, and whether the call has ended is seen in the event loop only."""
    monkeypatch.setattr(piped, "STRETCH_S", -1)
    told: list[int] = []
    pieces = -(-LARGE.buffer.nbytes // piped.PIECE_BYTES)

    async def go_on() -> None:
        told.append(1)

    with contextlib.closing(an_outlet()) as outlet:
        monkeypatch.setattr(Outlet, "put", lambda _, part: min(part.nbytes, piped.PIECE_BYTES))
        monkeypatch.setattr(Inlet, "take", lambda _, into: into.nbytes)
        if end == "sender":
            await piped.put_all(outlet, LARGE, confirm, "m", lambda: told.append(1))
        else:
            into = Weights(LARGE.tensors, np.empty_like(LARGE.buffer))
            await piped.Piped("m", into, pipes.opened(outlet.name)).take_all(nothing, ignore, go_on)
    assert len(told) == pieces


async def test_a_transfer_that_is_cancelled_writes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory may be another model's as soon as nobody holds it."""
    into = Weights(LARGE.tensors, np.zeros_like(LARGE.buffer))
    takes, go_on, took = asyncio.Event(), threading.Event(), threading.Event()
    loop, take = asyncio.get_running_loop(), Inlet.take

    def late(inlet: Inlet, part: memoryview) -> int | None:
        loop.call_soon_threadsafe(takes.set)
        assert go_on.wait(10)
        size = take(inlet, part)
        took.set()
        return size

    monkeypatch.setattr(Inlet, "take", late)
    with contextlib.closing(an_outlet()) as outlet:
        taking = asyncio.create_task(
            piped.Piped("m", into, pipes.opened(outlet.name)).take_all(nothing, ignore, nothing)
        )
        outlet.was_opened()
        assert outlet.put(np.ones(1000, np.uint8)) == 1000
        await takes.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        go_on.set()
        assert await asyncio.to_thread(took.wait, 10)
        with pytest.raises(BrokenPipeError):
            outlet.put(np.ones(1000, np.uint8))
    assert not into.buffer.any()


@pytest.mark.parametrize("lacks", [(os, "memfd_create"), (os, "pipe2"), (fcntl, "F_SETPIPE_SZ")])
async def test_models_travel_where_python_knows_no_such_pipes(
    lacks: tuple[Any, str], ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = pipes.machine()
    ways.piped = 0  # without the byte that tries the system
    monkeypatch.delattr(*lacks)
    pipes._machine.cache_clear()
    try:
        assert pipes.machine() == ""
        assert (await fetched(LARGE)).digest == LARGE.digest
        assert (await uploaded(LARGE, here)).digest == LARGE.digest
        with pytest.raises(OSError, match="of this machine"):
            pipes.opened(f"1/2/{'0' * 32}")
    finally:
        monkeypatch.undo()
        pipes._machine.cache_clear()
    assert not ways.piped
