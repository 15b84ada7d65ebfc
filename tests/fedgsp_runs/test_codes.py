"""Functions are the same if they do the same, wherever they stand."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from fedgsp_runs.codes import same_code


def made(text: str, before: str = "") -> FunctionType:
    """The function f of a text."""
    names: dict[str, Any] = {}
    exec(compile(before + text, "<text>", "exec", dont_inherit=True), names)
    found = names["f"] if "f" in names else names["outer"]()
    assert isinstance(found, FunctionType)
    return found


SAME = [
    "def f(x, /, y=1, *z, k): return x in {1, 2.5, (3, 'a')}, -0.0, 1e999 - 1e999, 1j, b'a', ..., None",
    "async def f():\n    async for x in y():\n        yield [z async for z in x]",
    "def f():\n    'Says.'\n    class Inner(Base):\n        size = 12\n        def g(self): return super().g()\n"
    "    return Inner",
    "def f():\n    from a import b\n    try:\n        b()\n    except (A, B) as c:\n        return lambda d=1: (c, d)",
]


@pytest.mark.parametrize("text", SAME)
def test_a_function_is_the_same_at_another_place(text: str) -> None:
    indented = "\n".join(f"    {line}" for line in text.split("\n"))
    places = [made(text, "\n" * 300), made(f"if True:\n{indented}"), made(f"def outer():\n{indented}\n    return f")]
    assert all(same_code(made(text).__code__, other.__code__) for other in places)


@pytest.mark.parametrize(
    "around", ["{}", "for x in (1, 2):\n        if x: continue\n        {}", "try: {}\n    except A: pass"]
)
def test_an_import_beside_a_function_changes_nothing(around: str) -> None:
    """The compiler calls functions of modules otherwise if it sees the import."""
    text = f"def f(x=1):\n    {around.format('y = a.one(a.two(x).three(), b=[a.four(z) for z in x])')}\n    return y"
    alone, beside = made(text).__code__, made(text, "import sys as a\n").__code__
    assert alone.co_code != beside.co_code
    assert same_code(alone, beside)
    assert not same_code(alone, made(text.replace("a.two", "a.one"), "import sys as a\n").__code__)


DIFFERENT = [
    ("return 0.0", "return -0.0"),
    ("return 1", "return True"),
    ("return 1", "return 1.0"),
    ("return x in {1, 2}", "return x in {1, 3}"),
    ("return x.one", "return x.two"),
    ("return x.one(1)", "return x.one(2)"),
    ("return x.one(a=1)", "return x.one(b=1)"),
    ("return x < 1", "return x <= 1"),
    ("return x + 1", "return x - 1"),
    ("return f'{x:3}'", "return f'{x!r:3}'"),
    ("while x: x = 1", "if x: x = 1"),
    ("global y; y = 1", "y = 1"),
    ("return lambda: 1", "return lambda: 2"),
    ("return (1, (2, 'a'))", "return (1, (2, 'b'))"),
    ("try:\n        x()\n        y()\n    except A: pass", "try:\n        x()\n    except A: pass\n    y()"),
    ("class Inner:\n        def g(self): return 1", "class Inner:\n        def g(self): return 2"),
    ("class Inner: a = 'b'", "class Inner: a = 'c'"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_a_function_that_does_something_else_is_another(one: str, other: str) -> None:
    assert not same_code(made(f"def f(x):\n    {one}").__code__, made(f"def f(x):\n    {other}").__code__)


def test_parameters_belong_to_a_function() -> None:
    lists = ("x, y", "y, x", "x, *y", "x, *, y", "x, y, /", "x, **y")
    codes = [made(f"def f({one}): return 1").__code__ for one in lists]
    assert not any(same_code(one, other) for one in codes for other in codes if one is not other)


def test_annotations_inside_a_function_may_be_texts_in_one_of_two() -> None:
    text = "def f():\n    def g(x: int): return x\n    return g"
    assert same_code(made(text).__code__, made(text, "from __future__ import annotations\n").__code__)
