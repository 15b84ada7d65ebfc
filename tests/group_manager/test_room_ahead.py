"""How many models may come before their turn."""

from __future__ import annotations

from collections import Counter

from fedgsp.tensors.spill import SPILLED_BYTES
from group_manager.room_ahead import FILE_BYTES, IN_TURN, RoomAhead


def nobody() -> None:
    """Who asks and does not wait."""


def test_memory_bounds_the_models_that_came_and_their_number_those_on_their_way() -> None:
    room = RoomAhead(30, transfers=2)
    assert room.take(10, nobody)
    assert room.take(10, nobody)
    assert not room.take(10, nobody)  # two are on their way
    room.came()
    assert room.take(10, nobody)
    room.came()
    assert not room.take(10, nobody)  # three have come
    room.give(10)
    assert room.take(10, nobody)


def test_large_models_are_in_files_and_need_disk_for_all_of_them_and_those_in_turn() -> None:
    size = 10 * SPILLED_BYTES
    disk = {"free": (3 + IN_TURN) * size}
    room = RoomAhead(4 * FILE_BYTES, free=lambda: disk["free"])
    assert [room.take(size, nobody) for _ in range(4)] == [True, True, True, False]
    disk["free"] = 100 * size
    assert room.take(size, nobody)
    assert not room.take(size, nobody)  # memory
    room.give(size)
    assert room.take(size, nobody)
    disk["free"] = 0
    room.give(size)
    assert not room.take(size, nobody)
    assert room.take(FILE_BYTES, nobody)  # a small model needs no disk


def test_who_was_refused_is_told_once_when_there_may_be_room() -> None:
    told: Counter[str] = Counter()

    def one() -> None:
        told["one"] += 1

    def other() -> None:
        told["other"] += 1
        assert not room.take(20, other)  # still not enough: it waits again

    room = RoomAhead(10)
    assert room.take(10, nobody)
    for again in (one, one, other):
        assert not room.take(10, again)
    room.give(10)
    assert told == {"one": 1, "other": 1}
    room.came()
    assert told == {"one": 1, "other": 2}
    room.forget(other)
    room.give(0)
    assert told == {"one": 1, "other": 2}
