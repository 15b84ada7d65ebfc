"""What is read from the state of a run has the types that its code declares."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from top_server.grouping import Plan
from top_server.profiles.distance_file import Distance
from top_server.progress import Progress
from top_server.remembered import kept, restore_of, saved_of
from top_server.typed import MOST, has_type, kinds_of

if TYPE_CHECKING:
    from decimal import Decimal


#: Groups and idle clients as no plan has them.
PLANS: list[Any] = [[[[True, 2]], []], [[[1, "2"]], []], [[[1], [1]], []], [[[1]], [1]], [[[]], []], [[1], []], 5]
_TEXT: Any = ""


class Foreign:
    """A class of another package."""

    number: Decimal


@dataclass
class Loose:
    """A part whose author did not check types."""

    best: int = kept(int, lambda best: best, lambda best: best)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (int, [0, MOST], [-1, MOST + 1, True, 1.0, "1", None]),
        (float, [0.5, 1, float("nan")], [True, "1", None]),
        (int | None, [1, None], ["", 1.5]),
        (tuple[int, ...], [(), [1, 2], (1,)], [(True,), "1", {1: 1}, 5]),
        (tuple[float, int], [(0.5, 1), [1, 2]], [(1,), (1, 2, 3), ("", 1), None]),
        (dict[int, list[str]], [{}, {1: ["a"]}], [{"1": ["a"]}, {1: "a"}, {1: [1]}, []]),
        (Mapping[str, int], [{"a": 1}], [{"a": -1}, "a"]),
        (frozenset[int], [frozenset(), frozenset({1})], [frozenset({""}), {1}, [1]]),
        (deque[float], [deque([1.0])], [deque([None]), [1.0]]),
        (
            dict[tuple[int, int], Distance],
            [{(1, 2): Distance(0.5, 0.1)}],
            [{(1, 2): Distance(_TEXT, 0.1)}, {(1,): ()}],
        ),
        (Plan, [Plan(((1,),), (2,))], [Plan(((True,),), ()), Plan((), (_TEXT,)), None]),
        (Any, [None, 1], []),
    ],
    ids=str,
)
def test_values_of_a_type(kind: Any, right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert has_type(value, kind)
    for value in wrong:
        assert not has_type(value, kind)


def test_a_part_of_another_package_is_not_held_to_its_annotations() -> None:
    loose = Loose()
    loose.best = _TEXT
    restored = Loose()
    restore_of(restored, json.loads(json.dumps(saved_of(loose))))
    assert restored.best == _TEXT


def test_types_that_only_a_type_checker_finds_are_not_checked() -> None:
    assert kinds_of(Foreign) == {}


@pytest.mark.parametrize(
    "change",
    [
        *({"plan": plan} for plan in PLANS),
        {"afresh": ["1"]},
        {"first_clients": [None]},
        {"local_models": {"1": ["m", "40", "00", 1]}},
        {"update_lengths": ["long"]},
        {"in_vain": -1},
        {"left_out": {"loss": [{}]}},
        {"best": [0.5, -1, 0, {}]},
    ],
    ids=str,
)
def test_a_damaged_progress_is_refused_before_the_next_round(change: dict[str, Any]) -> None:
    saved = json.loads(json.dumps(Progress(plan=Plan(((0, 1),), (2,)), began={1: 1}).save()))
    Progress().restore(saved)
    with pytest.raises((TypeError, ValueError)):
        Progress().restore(saved | change)
