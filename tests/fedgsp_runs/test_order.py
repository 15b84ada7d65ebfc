"""Definitions that use each other stand in the module in an order in which it can be imported."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.order import ordered
from fedgsp_runs.writing import module_of
from tests.support.written_modules import written

#: Without this, annotations of cells are texts.
EAGER = "from fedgsp import Task"


def test_a_name_stands_behind_all_that_it_uses() -> None:
    uses = {"task": {"net": False, "rate": False}, "net": {"layer": True}, "layer": {"rate": False}, "rate": {}}
    assert ordered(uses) == ["rate", "layer", "net", "task"]


@pytest.mark.parametrize("first", ["base", "derived", "made"])
def test_names_that_use_each_other_stand_behind_what_they_need_at_once(first: str) -> None:
    """`made` is called when `derived` is defined, and uses `base` then."""
    uses = {"base": {"derived": False}, "derived": {"made": True}, "made": {"base": False}}
    names = ordered({first: uses[first], **uses})
    assert sorted(names) == sorted(uses)
    assert names.index("made") < names.index("derived")
    assert names.index("base") < names.index("derived")


def test_what_must_wait_stands_there_as_soon_as_it_can() -> None:
    uses = {
        "task": {"derived": True},
        "derived": {"base": True},
        "base": {"helper": False},
        "helper": {"derived": True},
    }
    assert ordered(uses) == ["base", "derived", "helper", "task"]


def test_names_that_cannot_be_ordered_are_all_there() -> None:
    assert sorted(ordered({"a": {"b": True, "other": True}, "b": {"a": True, "b": True}})) == ["a", "b"]


SETTINGS = """
    from dataclasses import dataclass

    @dataclass
    class Settings:
        rate: float = 0.5
        def made(self): return optimizer(self)

    def optimizer(settings: Settings) -> float: return settings.rate

    class Mine(Task):
        @staticmethod
        def model(): return Settings().made()
"""
DERIVED = """
    class Base:
        value = 0.5
        def made(self): return Derived()

    class Derived(Base):
        pass

    class Mine(Task):
        @staticmethod
        def model(): return Base().made().value
"""
CALLED = """
    def half(): return ONE / 2
    ONE = 1

    class Base:
        value = half()
        def made(self): return Derived()

    class Derived(Base):
        also = half()
        base: Base

    class Mine(Task):
        @staticmethod
        def model(default=half()): return Base().made().also
"""
VALUES = """
    from functools import partial

    def scale(value, by): return HALF(value / 2) if value > 9 else value * by
    HALF = partial(scale, by=0.5)

    class Mine(Task):
        @staticmethod
        def model(): return HALF(1)
"""
OF_THE_TASK = """
    class Mine(Task):
        @staticmethod
        def model(): return helper(Mine)

    def helper(task: type[Mine]) -> float: return 0.5
"""


@pytest.mark.parametrize("text", [SETTINGS, DERIVED, CALLED, VALUES, OF_THE_TASK])
def test_definitions_that_use_each_other_come_along(text: str, cells: Any) -> None:
    module = cells(text, EAGER)
    assert written(module_of(module.Mine))["Mine"].model() == module.Mine.model() == 0.5


def test_what_nodes_could_not_import_is_refused_before_a_process_is_started(cells: Any) -> None:
    """An annotation is executed in a module without `from __future__ import annotations`."""
    module = cells("Old = int\nclass Mine(Task):\n    def model(self) -> Old: return 1\ndel Old", EAGER + "\n")
    with pytest.raises(TaskError, match="the module that is written for the nodes raises NameError: name 'Old'"):
        module_of(module.Mine)


def test_annotations_stay_texts_if_the_script_uses_the_name_annotations(cells: Any) -> None:
    module = cells("""
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from nowhere import Net

        annotations = {"images": []}

        class Mine(Task):
            @staticmethod
            def model(net: Net = None) -> Net: return helper(net)

        def helper(net: Net) -> Net: return net
    """)
    assert written(module_of(module.Mine))["Mine"].model() is None
