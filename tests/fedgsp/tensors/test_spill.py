from __future__ import annotations

import mmap
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from fedgsp.means.averages import Mean
from fedgsp.tensors import spill
from fedgsp.tensors.spill import spilling_room, walk
from fedgsp.tensors.weights import Weights, WeightsError, check_finite
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_store import ModelStore
from tests.support.holders import PLENTY, serving_store
from tests.support.weights import some_weights, vector

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are counted as Linux does")

LARGE = 12_000_000  # 48 MB
#: Most that a process may have gained if that is not in its memory.
LITTLE = 24_000_000


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPILLED_BYTES", 1 << 20)
    spill._spare.clear()


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def spilled(weights: Weights) -> Weights:
    copy = Weights(weights.tensors, spilling_room(weights.buffer.nbytes))
    copy.buffer[...] = weights.buffer
    spill.let_go(copy.buffer)
    return copy


def test_the_pieces_of_an_array_are_the_array() -> None:
    for array in (np.arange(LARGE), np.arange(7, dtype=np.uint8), np.empty(0)):
        assert np.array_equal(np.concatenate([array[:0], *walk(array)]), array)


def test_what_was_let_go_is_there_when_it_is_looked_at_again_and_takes_no_memory_before() -> None:
    weights = some_weights(1, vector(LARGE))
    copy = spilled(weights)
    before = resident()
    assert copy.digest == weights.digest
    check_finite(copy)
    assert resident() - before < LITTLE
    assert np.array_equal(copy.buffer, weights.buffer)
    assert resident() - before > 3 * LARGE  # the view that was just looked at whole is in memory
    spill.let_go(copy.buffer)
    assert resident() - before < LITTLE


def test_models_in_files_have_the_mean_that_they_have_in_memory() -> None:
    models = [some_weights(seed, vector(2_000_001)) for seed in range(3)]
    found = []
    for kind in (lambda model: model, spilled):
        mean = Mean(weighted=True)
        for samples, model in enumerate(models, 1):
            mean.fold(kind(model), samples)
        found.append(mean.result().digest)
    assert found[0] == found[1]


def test_a_value_that_is_not_finite_is_found_in_a_file_too() -> None:
    weights = some_weights(1, vector(LARGE))
    weights.arrays["w"][LARGE - 1] = np.inf
    with pytest.raises(WeightsError):
        check_finite(spilled(weights))


async def test_a_large_model_passes_through_a_process_without_being_in_its_memory() -> None:
    weights, store = some_weights(1, vector(LARGE)), ModelStore()
    expected = weights.digest
    async with serving_store(
        store, may_upload=lambda _: True, max_bytes=lambda: PLENTY, make_room=spilling_room
    ) as served:
        await upload(served.channel, "m", weights)
        assert spill._mapping((await store.get("m")).buffer) is not None
        fetched = await fetch(served.channel, "m", None, PLENTY, make_room=spilling_room)
        before = resident()
        await upload(served.channel, "n", fetched)
        assert resident() - before < LITTLE
    assert (await store.get("n")).digest == expected


def test_a_model_at_rest_is_in_a_file_if_it_is_large() -> None:
    weights = some_weights(1, vector(LARGE))
    kept = weights.at_rest()
    assert spill._mapping(kept.buffer) is not None
    assert kept.digest == weights.digest
    assert spill._mapping(some_weights(1, vector(1000)).at_rest().buffer) is None
    assert kept.at_rest().buffer is kept.buffer


def test_without_a_place_for_files_models_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    made = spilling_room(2 << 20)
    assert len(made) == 2 << 20
    assert spill._mapping(made) is None
    assert "stays in memory" in caplog.text
    weights = some_weights(1, vector(1 << 20))
    assert weights.at_rest().buffer is weights.buffer


def test_the_file_of_a_model_that_is_gone_is_the_next_ones_and_takes_no_memory_before() -> None:
    first = spilling_room(4 * LARGE)
    first[:] = 7
    file = spill._mapping(first)
    before, view = resident(), first[8:16].view(np.float32)
    del first
    assert spill._mapping(spilling_room(4 * LARGE)) is not file  # a view still looks at it
    spill._spare.clear()
    del view
    assert before - resident() > 3 * LARGE
    assert spill._mapping(spilling_room(4 * LARGE)) is file


def test_a_file_of_another_size_is_not_used() -> None:
    spilling_room(2 << 20)
    assert len(spill._spare) == 1
    made = spilling_room(3 << 20)
    assert len(made) == 3 << 20
    assert not spill._spare


def test_small_models_stay_in_memory() -> None:
    assert spill._mapping(spilling_room(1000)) is None


@pytest.mark.usefixtures("usual_umask")
def test_a_model_in_a_file_can_be_read_by_nobody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = spilling_room(2 << 20)
    assert list(tmp_path.iterdir()) == []
    mine = [path for path in Path("/proc/self/fd").iterdir() if str(path.resolve()).startswith(str(tmp_path))]
    assert {path.stat().st_mode & 0o777 for path in mine} == {0o600}
    assert len(made) == 2 << 20


def test_pages_of_a_file_are_lacking_until_they_are_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(spill, "SPILLED_BYTES", 1 << 20)
    monkeypatch.setattr(spill, "_spare", deque(maxlen=1))
    array = spill.spilling_room(4 << 20)
    if not spill.lacks_pages(array):
        pytest.skip("this folder is in memory")
    part = array[12_345 : 2 << 20]
    spill.touch(part, to_write=True)
    assert not spill.lacks_pages(part)
    array[12_345:12_355] = range(10)
    spill.touch(array)
    assert not spill.lacks_pages(array)
    assert list(array[12_345:12_355]) == list(range(10))


def test_memory_lacks_no_pages() -> None:
    assert not spill.lacks_pages(np.empty(8 << 20, np.uint8))
