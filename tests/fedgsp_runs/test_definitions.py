"""The source of a class or function is that of the definition which the notebook or script uses."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.writing import module_of
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


ENCLOSED = """
    import functools

    def scaler(by):
        def scale(value): return by * value
        return scale

    def doubled(function):
        def call(*values): return 2 * function(*values)
        return call

    def network(size):
        class Net:
            _sizes = [size]
        return Net

    double, triple, Net = scaler(2), scaler(3), network(4)
    by = function = size = None

    @doubled
    def rows(count): return count
"""


@pytest.mark.parametrize(
    ("used", "variable"), [("double", "by"), ("rows", "function"), ("Net", "size"), ("PART", "by")]
)
def test_what_a_function_makes_with_variables_of_its_own_is_refused(used: str, variable: str, cells: Any) -> None:
    """Even if the module has variables of the same names."""
    text = textwrap.dedent(ENCLOSED) + f"PART = functools.partial(double)\nclass Mine(Task):\n    _used = {used}"
    name = used if used != "PART" else "scale"
    what = f"Mine uses '{name}', which is made inside a function and uses variables of that function: {variable}"
    with pytest.raises(TaskError, match=what) as caught:
        module_of(cells(text).Mine)
    assert caught.value.remedy.endswith("if a decorator makes it, let that use functools.wraps")


WRAPPED = """
    import functools

    def doubled(function):
        @functools.wraps(function)
        def call(*values): return 2 * function(*values)
        return call

    def rows(count): return count
    {}

    class Mine(Task):
        def model(self): return rows(2)
        def data(self, client): return {}
    {}
"""
LATER = "the function 'rows' was wrapped after its def statement"


@pytest.mark.parametrize(
    ("function", "value", "method", "what"),
    [
        ("rows = doubled(rows)", "1", "", LATER),
        ("rows = functools.cache(rows)", "1", "", LATER),
        ("twice = doubled(rows)", "twice(1)", "", "Mine uses two things that have the name 'rows'"),
        (
            "",
            "1",
            "Mine.model = doubled(Mine.model)",
            "Mine.model was set after the class statement, which says",
        ),
    ],
)
def test_a_wrapper_that_comes_later_is_refused(function: str, value: str, method: str, what: str, cells: Any) -> None:
    with pytest.raises(TaskError, match=what):
        module_of(cells(WRAPPED.format(function, value, method)).Mine)


def test_two_functions_of_one_name_are_refused(cells: Any) -> None:
    module = cells("""
        def part(value): return value
        first = part
        def part(value): return 2 * value

        class Mine(Task):
            def model(self): return first(1), part(1)
    """)
    with pytest.raises(TaskError, match="Mine uses two things that have the name 'part'; give each a name of its own"):
        module_of(module.Mine)


def test_an_optimiser_that_was_used_comes_along(cells: Any) -> None:
    """torch wraps the method `step` of its class then."""
    module = cells("""
        import torch

        class Mine(Task):
            def model(self): return layers.Linear(1, 1)
            def data(self, client): return None
            def optimizer(self, parameters, learning_rate): return Slow(parameters, learning_rate)

        class Slow(torch.optim.SGD):
            def step(self, closure=None): return super().step(closure)
    """)
    for mine in module.Mine(), written(module_of(module.Mine))["Mine"]():
        assert mine.optimizer(mine.model().parameters(), 0.5).step() is None
    assert hasattr(module.Slow.step, "__wrapped__")
    assert "class Slow" in module_of(module.Mine)


@pytest.mark.parametrize(
    "line", ["import its_package.inner.data", "import its_package as short, its_package.inner.data"]
)
def test_a_module_inside_a_package_is_imported_for_the_nodes(
    line: str, cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package itself imports nothing: `its_package.inner` is there because the script has imported it."""
    inner = tmp_path / "its_package" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").touch()
    (inner / "data.py").write_text("def load(): return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "p" if "as p" in line else "its_package"
    module = cells(f"""
        {line}

        class Mine(Task):
            def model(self): return {name}.inner.data.load()
            def data(self, client): return layers.functional.relu
    """)
    text = module_of(module.Mine)
    for known in [known for known in sys.modules if known.startswith("its_package")]:
        monkeypatch.delitem(sys.modules, known)
    assert written(text)["Mine"]().model() == 3


def test_a_class_of_a_notebook_has_the_source_of_its_last_cell(notebook: Any) -> None:
    texts = [
        "class Base:\n    known = 1",
        "class Mine(Base):\n    def two(self): return 1",
        "def same(one): return one\n\n@same\nclass Mine(Base):\n    def two(self): return 2\n\nafter = 1",
    ]
    text = module_of(notebook(texts).Mine)
    assert text.endswith("@same\nclass Mine(Base):\n    def two(self): return 2\n")
    assert written(text)["Mine"]().two() == 2


@pytest.mark.parametrize("listed", [True, False])
def test_a_class_of_a_cell_that_was_edited_and_taken_back_has_its_old_source(listed: bool, notebook: Any) -> None:
    """The class has no method that tells its cell."""
    old = "from dataclasses import dataclass\n\n@dataclass\nclass Net:\n    size: int = 1\n"
    new = old + "    rate: float = 0.5\n"
    task = "class Mine:\n    model = lambda self: Net"
    module = notebook([old, task, new, old])
    assert "rate" not in module_of(module.Mine)
    module = notebook([old, task, new])
    if not listed:
        module.In = 3
    assert "rate" in module_of(module.Mine)


INDENTED = '''
import functools
{}
    class Net:
        """Says.

More at the first column.
"""
        text = """
        indented
at the first column"""
# A comment at the first column.
        def size(self): return 9

    @functools.cache
    def prompt():
        return """
    indented
"""
{}
class Mine(Task):
    @staticmethod
    def model(): return Net().size(), Net.text, prompt(), Net.__doc__
'''


@pytest.mark.parametrize("around", [("if True:", ""), ("try:", "finally: pass"), ("with open(__file__):", "")])
def test_an_indented_definition_comes_along_as_it_stands(around: tuple[str, str], cells: Any) -> None:
    module = cells(INDENTED.format(*around))
    assert written(module_of(module.Mine))["Mine"].model() == module.Mine.model()


INSIDE_A_CLASS = """
    import enum

    class Base:
        def size(self): return 1

    class Net(Base):
        class Kind(enum.Enum):
            A = 1
        def size(self): return 1 + super().size()
        def kind(self): return self.Kind.A

    size, Kind, KIND = Net.size, Net.Kind, Net.Kind.A
    {}

    class Mine(Task):
        @staticmethod
        def model(): return size(Net()), Net().kind() is KIND, Kind is Net.Kind
"""


def test_a_definition_behind_a_form_feed_comes_along(cells: Any) -> None:
    module = cells("""
\fdef rows(): return 3

\fclass Mine(Task):
    def model(self): return rows()
    """)
    assert written(module_of(module.Mine))["Mine"].model(None) == 3


def test_what_stands_inside_a_class_is_found_there(cells: Any) -> None:
    module = cells(INSIDE_A_CLASS.format(""))
    assert written(module_of(module.Mine))["Mine"].model() == module.Mine.model() == (2, True, True)


def test_a_method_is_refused_if_it_needs_a_class_that_no_name_leads_to(cells: Any) -> None:
    module = cells(INSIDE_A_CLASS.format("class Net(Base): pass"))
    with pytest.raises(TaskError, match="Mine uses 'size', a method that needs its class, and no name leads to that"):
        module_of(module.Mine)
