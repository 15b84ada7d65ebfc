"""Models that go through memory, and what happens where that cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedgsp import chunks, spill, windows
from fedgsp.encoding import rounded, wire_bytes
from fedgsp.messages import TensorSpec
from fedgsp.model_calls import fetch
from fedgsp.model_store import ModelStore
from fedgsp.windows import SLOT_BYTES
from tests.support.handed_over import ELEMENTS, LARGE, fetched, unknown, uploaded, windows_open
from tests.support.holders import PLENTY, serving_store
from tests.support.weights import some_weights, vector

pytestmark = [
    pytest.mark.skipif(not windows.machine(), reason="no windows on this system"),
    pytest.mark.usefixtures("no_window_spare"),
]


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
    assert not ways.in_window
    assert ways.travelled > 1


async def test_many_small_tensors_fill_slots_together(ways: Ways) -> None:
    """Of a model in bfloat16 each run of tensors of one kind is a chunk of its own."""
    tensors = tuple(
        spec
        for number in range(60)
        for spec in (TensorSpec(f"w{number}", "float32", (90_001,)), TensorSpec(f"n{number}", "int64", (1,)))
    )
    weights = rounded(some_weights(2, tensors))
    came = await fetched(unknown(weights))
    assert np.array_equal(came.buffer, weights.buffer)
    assert ways.in_window == -(-wire_bytes(tensors, True) // SLOT_BYTES)


@pytest.mark.parametrize("way", [fetched, lambda weights: uploaded(weights, windows.machine())])
async def test_a_model_in_a_file_comes_as_it_was(way: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(spill, "SPILLED_BYTES", 1 << 20)
    assert (await way(unknown(LARGE).at_rest())).digest == LARGE.digest


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
    """And what is more than there may be windows travels."""
    count = windows.MOST + 2
    store, models = ModelStore(), [some_weights(seed, vector(ELEMENTS)) for seed in range(count)]
    for number, weights in enumerate(models):
        store.put(str(number), weights)
    for _ in range(2):  # with none spare, and with some
        async with serving_store(store) as served:
            asked = (fetch(served.channel, str(number), None, PLENTY) for number in range(count))
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
            "from fedgsp.identity import TOP_SERVER\n"
            "from fedgsp.model_calls import fetch\n"
            "async def main():\n"
            "    opened, windows.opened = [], lambda name, open=windows.opened: (opened.append(name), open(name))[1]\n"
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
    seen, kept, opened = [], windows.opened, asyncio.Event()

    def opening(name: str) -> windows.Window:
        opened.set()
        seen.append(kept(name))
        return seen[-1]

    monkeypatch.setattr(windows, "opened", opening)
    store = ModelStore()
    store.put("m", LARGE)
    async with serving_store(store) as served:
        task = asyncio.create_task(fetch(served.channel, "m", None, PLENTY))
        await opened.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for _ in range(3):
            assert (await fetch(served.channel, "m", None, PLENTY)).digest == LARGE.digest
    assert len(seen) == 4
    assert seen[0].name not in {window.name for window in seen[1:]}


@pytest.mark.parametrize("lacks", [(os, "memfd_create"), (fcntl, "F_ADD_SEALS")])
async def test_models_travel_where_python_knows_no_windows(
    lacks: tuple[Any, str], ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = windows.machine()
    monkeypatch.delattr(*lacks)
    windows._machine.cache_clear()
    try:
        assert windows.machine() == ""
        assert (await fetched(LARGE)).digest == LARGE.digest
        assert (await uploaded(LARGE, here)).digest == LARGE.digest
        with pytest.raises(OSError, match="of this machine"):
            windows.opened(f"1/2/{'0' * 32}")
    finally:
        monkeypatch.undo()
        windows._machine.cache_clear()
    assert not ways.in_window
