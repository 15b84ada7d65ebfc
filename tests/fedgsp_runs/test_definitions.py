"""The source of a class or function is that of the definition which the notebook or script uses."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.source import module_of
from tests.support.written_modules import written


@pytest.mark.parametrize("large", [True, False])
def test_of_several_definitions_of_a_class_the_one_in_use_comes_along(large: bool, cells: Any) -> None:
    """A cell of a script, or a branch, may define a class that another one has defined before."""
    module = cells(f"""
        import functools

        if {large}.real:
            class Net:
                @property
                def size(self): return 9
        else:
            @functools.total_ordering
            class Net:
                @functools.cached_property
                def size(self): return 1
                def __lt__(self, other): return True
                def __eq__(self, other): return True

        class Mine(Task):
            num_classes = 1
            def model(self): return "first"

        class Mine(Task):
            num_classes = 2
            def model(self): return Net()
            def data(self, client): return None
    """)
    mine = written(module_of(module.Mine))["Mine"]()
    assert (mine.num_classes, mine.model().size) == (2, 9 if large else 1)
    assert large or mine.model() < 3


def test_a_class_without_methods_that_is_defined_in_several_ways_is_refused(cells: Any) -> None:
    text = """
        if len("a") == {}:
            class Net: _kind = "a"
        else:
            class Net: _kind = {}

        class Mine(Task):
            @staticmethod
            def model(): return Net._kind
    """
    module = cells(text.format(1, '"b"'))
    what = "the class 'Net' is defined 2 times, and it has no method that tells"
    with pytest.raises(TaskError, match=what) as caught:
        module_of(module.Mine)
    assert caught.value.remedy == "give each of these classes a name of its own"
    module = cells(text.format(2, '"a"'))
    assert written(module_of(module.Mine))["Mine"].model() == "a"
