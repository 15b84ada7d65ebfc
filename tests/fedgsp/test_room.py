from __future__ import annotations

import numpy as np
import pytest

from fedgsp.tensors import memory
from fedgsp.tensors.memory import drop_spare, room

LARGE = 2 << 20


@pytest.fixture(autouse=True)
def nothing_spare() -> None:
    drop_spare()


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE - 1, LARGE])
def test_room_has_its_size_begins_on_a_cache_line_and_can_be_written(size: int) -> None:
    made = room(size)
    made[:] = 7
    assert (len(made), made.dtype) == (size, np.dtype(np.uint8))
    assert made.ctypes.data % 64 == 0 or not size


def test_the_pages_of_a_model_that_is_gone_are_the_next_ones() -> None:
    first = room(LARGE)
    view, address = first[8:16].view(np.float32), first.ctypes.data
    del first
    assert room(LARGE).ctypes.data != address  # a view still looks at them
    drop_spare()
    del view
    assert room(LARGE).ctypes.data == address


def test_pages_of_another_size_are_not_used_and_only_one_set_is_kept() -> None:
    sizes = (LARGE, 2 * LARGE, 3 * LARGE)
    held = [room(size) for size in sizes]
    held.clear()
    assert len(memory._spare) == 1
    made = room(4 * LARGE)
    assert len(made) == 4 * LARGE
    assert not memory._spare


def test_very_large_pages_go_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_most_spare_bytes", LARGE)
    held = [room(LARGE + 1)]
    held.clear()
    assert not memory._spare


def test_very_large_pages_stay_if_that_is_wanted() -> None:
    memory.keep_large(True)
    first = room(memory._MOST_SPARE_BYTES + 1)  # its pages are never touched
    address = first.ctypes.data
    memory.keep_large(False)
    del first
    assert room(memory._MOST_SPARE_BYTES + 1).ctypes.data == address
