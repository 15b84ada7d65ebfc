"""Task classes of notebooks and scripts, written as modules: what is taken along, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.writing import module_of
from tests.support.written_modules import written


def test_imports_functions_bases_and_plain_values_come_along(cells: Any, tmp_path: Path) -> None:
    module = cells("""
        LIMITS = {"least": [1, -0.5, (2,)], "names": {"a"}, "no": None, "nan": float("nan")}
        FOLDER = Path("data")
        unused = object()

        def half(value):
            return other(value) / 2

        def other(value):
            return math.floor(value)

        class Base(Task):
            num_classes = 2

        class Mine(Base):
            num_clients = 3

            def model(self):
                return layers.Linear(2, 2)

            def data(self, client: int) -> "Hint":
                return half(np.float64(5.5)), LIMITS, FOLDER

        class Hint:
            pass
    """)
    found = written(module_of(module.Mine))
    assert issubclass(found["Mine"], found["Base"])
    value, limits, folder = found["Mine"]().data(0)
    assert value == 2.5
    assert (limits["least"], limits["names"], limits["no"]) == ([1, -0.5, (2,)], {"a"}, None)
    assert limits["nan"] != limits["nan"]
    assert folder == Path("data").absolute()
    assert found["Mine"]().model().in_features == 2
    assert "Hint" in found
    assert "unused" not in found


def test_a_name_of_the_script_wins_over_the_builtin_of_that_name(cells: Any) -> None:
    module = cells("""
        vars = 7
        set = "a set"
        float = "a number"
        LIMITS = ({1, 2}, frozenset([3]), -math.inf)

        def sum(values):
            return 42

        class type:
            pass

        class Mine(Task):
            abs = vars

            def model(self): return sum([vars]), type.__name__, set, float, self.abs
            def data(self, client): return LIMITS
    """)
    mine = written(module_of(module.Mine))["Mine"]()
    assert mine.model() == module.Mine().model() == (42, "type", "a set", "a number", 7)
    assert mine.data(0) == ({1, 2}, {3}, -float("inf"))


def test_a_local_name_is_not_taken_for_that_of_the_script(cells: Any) -> None:
    """What cannot be written is refused, so it must not be looked for under the name of a parameter."""
    module = cells("""
        input = rows = np.zeros(3)

        class Mine(Task):
            def model(self): return [input + rows for input, rows in [(1, 2)]]
            def data(self, input, rows=None):
                def inner(): return input
                return inner()
    """)
    text = module_of(module.Mine)
    assert "zeros" not in text
    assert written(text)["Mine"]().data(4) == 4


def test_what_a_notebook_makes_of_builtins_stays_a_builtin(cells: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = cells("""
        from IPython.core.autocall import ExitAutocall
        from IPython.core.interactiveshell import _modified_open as open  # as in the names of every notebook

        exit = ExitAutocall()

        class Mine(Task):
            def model(self): return open, exit, __name__
            def data(self, client): return None
    """)
    assert module.open is not open
    with monkeypatch.context() as cell:
        cell.delattr("builtins.exit")  # as IPython does while a cell is executed
        text = module_of(module.Mine)
    assert written(text)["Mine"]().model() == (open, exit, "written")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("table = np.zeros(3)\nclass Mine(Task):\n    def data(self, client): return table", "'table', a ndarray"),
        ("thing = object()\nclass Mine(Task):\n    def model(self): return thing", "'thing', a object"),
        ("half = lambda one: one / 2\nclass Mine(Task):\n    def model(self): return [half]", "'half', a lambda"),
        (
            "kept = {0: [np.zeros(3)]}\nclass Mine(Task):\n    def data(self, client): return kept[client]",
            "'kept', a dict that holds a ndarray",
        ),
        (
            "d = {}\nd[0] = [d]\nclass Mine(Task):\n    def data(self, client): return d",
            "'d', a dict that holds itself",
        ),
        (
            "from functools import partial\nhalf = partial(np.add, np.zeros(3))\nclass Mine(Task):\n    add = half",
            "'half', a partial that holds a ndarray",
        ),
    ],
)
def test_what_has_no_source_is_refused_by_name(cells: Any, text: str, what: str) -> None:
    module = cells(text)
    with pytest.raises(TaskError, match=f"Mine uses {what}, which cannot be written as source") as caught:
        module_of(module.Mine)
    assert caught.value.remedy


def test_a_filled_cache_is_refused_with_the_way_to_empty_it(cells: Any) -> None:
    module = cells("""
        CACHE = {}

        class Mine(Task):
            def model(self): return None
            def data(self, client): return CACHE.setdefault(client, np.zeros(client))
    """)
    module.Mine().data(3)
    with pytest.raises(TaskError, match="'CACHE', a dict that holds a ndarray, ") as caught:
        module_of(module.Mine)
    assert caught.value.remedy.startswith("call CACHE.clear() before if the task fills it itself, make it inside")
    module.CACHE.clear()
    assert "CACHE = {}" in module_of(module.Mine)


@pytest.mark.parametrize("table", ["{'half': half}", "[Half]", "{Half}"])
def test_a_table_of_functions_or_classes_is_not_told_to_be_emptied(table: str, cells: Any) -> None:
    module = cells(f"""
        def half(value): return value / 2
        class Half: pass
        TABLE = {table}

        class Mine(Task):
            def model(self): return TABLE
    """)
    with pytest.raises(TaskError, match=r"'TABLE', a \w+ that holds a (function|type)") as caught:
        module_of(module.Mine)
    assert caught.value.remedy.startswith("make it inside the class")


def test_a_text_is_no_use_of_what_has_this_name_unless_an_annotation_quotes_it(cells: Any) -> None:
    module = cells("""
        from typing import Literal

        net = label = np.zeros(3)

        class First: pass
        class Second: pass
        class Third: pass

        class Mine(Task):
            "net"
            one: "First"
            def model(self, kind: Literal["net"] = "net") -> "list[Second | None]": return "net", {"label": 1}
            def data(self, client: "a client", hint: list["Third"] = ()): return None
    """)
    text = module_of(module.Mine)
    assert "zeros" not in text
    assert {"First", "Second", "Third"} <= written(text).keys()


def test_functions_come_along_with_their_decorators(cells: Any) -> None:
    module = cells("""
        import functools
        from functools import cache

        def doubled(function):
            @functools.wraps(function)
            def call(*values): return 2 * function(*values)
            return call

        @functools.lru_cache(maxsize=2)
        def rows(count): return [count]

        @cache
        @doubled
        def three(): return 3

        class Mine(Task):
            def model(self): return three()
            def data(self, client): return rows(client)
    """)
    text = module_of(module.Mine)
    mine = written(text)["Mine"]()
    assert mine.model() == 6
    assert mine.data(1) is mine.data(1)
    assert "@functools.lru_cache(maxsize=2)\ndef rows" in text


def test_small_objects_come_along_as_what_makes_equal_ones(cells: Any) -> None:
    module = cells("""
        import enum
        from functools import partial
        from http import HTTPStatus

        import torch
        from numpy import exp

        def scale(value, by): return value * by

        class Kind(enum.Enum):
            A = object()

        KIND, STATUS = Kind.A, HTTPStatus.NOT_FOUND
        SMALL = (torch.half, torch.device("cuda", 1), np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("inf"))
        PARTS = {"few": range(2, 9, 3), "first": slice(None, 4), "odd": complex(-0.0, float("inf"))}
        HALF = partial(scale, by=np.float64(0.5))
        LEAKY = partial(layers.LeakyReLU, 0.25, inplace=True)

        class Mine(Task):
            def model(self): return KIND is Kind.A, STATUS is HTTPStatus.NOT_FOUND, HALF(4), exp(0), LEAKY()
            def data(self, client): return SMALL, PARTS
    """)
    mine = written(module_of(module.Mine))["Mine"]()
    kept, found, half, one, leaky = mine.model()
    assert (kept, found, half, one) == (True, True, 2.0, 1.0)
    assert (leaky.negative_slope, leaky.inplace) == (0.25, True)
    assert repr(mine.data(0)) == repr(module.Mine().data(0))
    assert list(map(type, mine.data(0)[0])) == list(map(type, module.SMALL))


def test_named_tuples_come_along(cells: Any) -> None:
    module = cells(
        """
        from collections import namedtuple

        Batch = namedtuple("Batch", "x y", defaults=[np.float64(2)])
        Other = namedtuple("Short", ["one"])
        TYPES = functools.partial(Batch, 1)

        class Mine(Task):
            def model(self): return Batch(1), Other(3), TYPES()
            def data(self, client): return type(TYPES()) is Batch
    """,
        "import functools\nimport numpy as np\nfrom fedgsp import Task\n",
    )
    mine = written(module_of(module.Mine))["Mine"]
    assert repr(mine.model(None)) == repr(module.Mine.model(None))
    assert mine.data(None, 0)


@pytest.mark.parametrize(
    "text",
    [
        "import enum\nKind = enum.Enum('Kind', 'A B')",
        "import typing\nKind = typing.NamedTuple('Kind', [('x', int)])",
        "import typing\nKind = typing.TypedDict('Kind', {'x': int})",
        "import collections\nKind = collections.namedtuple('Kind', 'x')\nKind.size = property(len)",
    ],
)
def test_other_classes_that_a_call_makes_are_refused_with_the_way_to_write_them(text: str, cells: Any) -> None:
    module = cells(f"{text}\nclass Mine(Task):\n    def model(self): return Kind")
    with pytest.raises(TaskError, match="the source of 'Kind' is not known") as caught:
        module_of(module.Mine)
    assert caught.value.remedy.startswith("write it as a class statement if a call makes it, ")


def test_methods_of_classes_patterns_and_loggers_come_along(cells: Any) -> None:
    module = cells("""
        import logging
        import re

        import torch

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(context, x): return x * x

        square = Square.apply
        from_text = Path.cwd
        WORD, FLAT = re.compile("a.b", re.DOTALL | re.IGNORECASE), re.compile(rb"(?x) c")
        LOG, ROOT = logging.getLogger("clinic.a"), logging.getLogger()

        class Mine(Task):
            def model(self): return square(torch.tensor(3)), from_text()
            def data(self, client): return WORD, FLAT, LOG, ROOT
    """)
    mine = written(module_of(module.Mine))["Mine"]
    assert mine.model(None) == (9, Path.cwd())
    assert mine.data(None, 0) == module.Mine.data(None, 0)


@pytest.mark.parametrize("value", ["Kind().method", "logging.Logger('clinic.a')"])
def test_a_method_of_an_object_and_a_logger_that_no_name_leads_to_are_refused(value: str, cells: Any) -> None:
    module = cells(f"""
        import logging

        class Mine(Task):
            def model(self): return thing
            def data(self, client): return None

        class Kind:
            def method(self): return 1
        thing = {value}
    """)
    with pytest.raises(TaskError, match=r"Mine uses 'thing', a (method|Logger), which cannot be written as source"):
        module_of(module.Mine)


def test_functions_that_call_each_other_and_other_names_for_them_come_along(cells: Any) -> None:
    module = cells("""
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n > 0 and even(n - 1)
        same = even

        class Mine(Task):
            def model(self): return same(4), odd(3)
            def data(self, client): return None
    """)
    assert written(module_of(module.Mine))["Mine"]().model() == (True, True)


ANSWERING = """
    class Auto(dict):
        def __getattr__(self, name): return Auto()

    class Dotted(dict):
        __getattr__ = dict.__getitem__

    class Raising:
        def __getattr__(self, name): raise RuntimeError(name)

    auto, dotted, raising = Auto(), Dotted(rate=1), Raising()
    {}

    class Settings:
        of_auto, of_dotted, of_raising = Auto(), Dotted(rate=2), Raising()

    class Mine(Task):
        @staticmethod
        def model(): return Settings.of_dotted.rate{}
"""


@pytest.mark.parametrize("head", ["", "open = dotted", "annotations = raising"])
def test_attributes_that_answer_every_name_come_along_with_their_class(head: str, cells: Any) -> None:
    module = cells(ANSWERING.format(head, ""))
    assert written(module_of(module.Mine))["Mine"].model() == 2


@pytest.mark.parametrize(("used", "kind"), [("auto", "Auto"), ("dotted", "Dotted"), ("raising", "Raising")])
def test_values_that_answer_every_name_are_refused_by_name(used: str, kind: str, cells: Any) -> None:
    module = cells(ANSWERING.format("open = dotted", f", {used}, open"))
    with pytest.raises(TaskError, match=f"Mine uses '{used}', a {kind}, which cannot be written as source") as caught:
        module_of(module.Mine)
    assert caught.value.remedy.startswith("make it inside the class")
