"""What scripts do every day comes along, also after it was used: the comparison with the source refuses none of it."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from fedgsp_runs.writing import module_of
from tests.support.written_modules import written

CACHES = """
    import functools
    import logging

    @functools.lru_cache
    def rows(count, seen={}, *, more=[]):
        seen[count] = 1
        more.append(count)
        return count

    def counted(function):
        calls, last, state, known, name = 0, None, {"calls": 0}, {}, f"{function.__module__}.{function.__name__}"
        @functools.wraps(function)
        def call(*values):
            nonlocal calls
            calls += 1
            state["calls"] += 1
            known[name] = values
            def remember():
                nonlocal last
                last = calls
            remember()
            return function(*values)
        return call

    class Lazy:
        def __init__(self, func): self.func = func
        def __get__(self, instance, owner): return self if instance is None else self.func(instance)

    class Used:
        _known, kept, log = None, [], logging.getLogger(__name__)
        @functools.cached_property
        def size(self): return rows(3)
        @Lazy
        def late(self): return self.size
        @counted
        def often(self):
            Used._known = self
            Used.kept.append(self)
            return self.late
"""
CLASSES = """
    import enum
    from abc import ABC, abstractmethod
    from collections import namedtuple
    from dataclasses import dataclass, field
    from typing import NamedTuple, Protocol, TypedDict, runtime_checkable

    class Kind(enum.Enum):
        A = enum.auto()
        B = enum.auto()
        @classmethod
        def _missing_(cls, value): return cls.A

    @dataclass(frozen=True, order=True, slots=True)
    class Settings:
        kind: Kind = Kind.A
        sizes: list[int] = field(default_factory=list)

    class Pair(namedtuple("Pair", "one two")):
        def both(self): return self.one + self.two

    class Named(NamedTuple):
        one: int
        two: int = 2

    class Typed(TypedDict, total=False):
        one: int

    @runtime_checkable
    class Sized(Protocol):
        size: int

    class Mixin:
        def __init__(self, pair=Pair): self.pair = pair(1, 2)

    class Base(ABC):
        _subclasses = {}
        def __init_subclass__(cls): Base._subclasses[cls.__name__] = cls
        @property
        @abstractmethod
        def size(self): ...

    class Both(Sized, Mixin): size = 1

    class Used(Base, Mixin):
        size = 3
        kinds = {"all": (Kind.A, Kind.B), "one": Kind.A}
        def often(self, settings=Settings, *, named=Named, typed=Typed):
            assert isinstance(self, Sized) and Kind(17) is Kind.A and Both().pair
            return self.pair.both(), settings().kind.name, named(1).two, typed(one=1), Settings() <= Settings()
"""
SCOPES = """
    import asyncio
    import functools

    def main():
        class Inner:
            def size(self):
                class Innermost: size = 12
                return Innermost.size
        def helper(value: int): return value
        return Inner, helper

    Inner, helper = main()

    def times(count):
        def decorate(function):
            @functools.wraps(function)
            def call(*values): return count * function(*values)
            return call
        return decorate

    class Model:
        @staticmethod
        def score(value, key=lambda one: -one): return key(value)
        def __secret(self): return 1
        def open(self): return self.__secret()

    score = Model.score

    class Used:
        @functools.singledispatchmethod
        def part(self, value): return "other"
        @part.register(int)
        @part.register(str)
        def _(self, value): return "known"
        def base(self, one, two=float("nan")): return one
        first = functools.partialmethod(base, 1)
        table = {"a": lambda self: 1}
        @times(2)
        async def later(self): return 1
        @times(3)
        def often(self):
            found = Inner().size(), helper(1), score(2), Model.score(2), Model().open(), self.first()
            return str((found, self.part(1), self.part(1.0), [one for one in found if one in {1, 2}]))
"""
TORCH = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, act=nn.ReLU, dtype=torch.float32):
            super().__init__()
            self.layer, self.act = nn.Linear(2, 1, dtype=dtype), act()
        def forward(self, x): return self.act(self.layer(x))

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x): return 2 * x
        @staticmethod
        def backward(context, gradient): return 2 * gradient

    class Slow(torch.optim.Optimizer):
        def __init__(self, parameters, rate=0.1): super().__init__(parameters, {"rate": rate})
        @torch.no_grad()
        def step(self, closure=None): return None

    class Faster(torch.optim.SGD):
        def __init__(self, parameters): super().__init__(parameters, lr=2 * 0.1)

    class Slower(Slow): pass

    class Used:
        activation = nn.ReLU
        @torch.no_grad()
        def often(self):
            net = Net()
            for kind in Faster, Slower, Slow:
                kind(net.parameters()).step()
            return tuple(net(torch.ones(1, 2)).shape), float(Double.apply(torch.ones(())))
"""


TASK = """
    class Mine(Task):
        used = staticmethod(lambda: Used().often())
"""


#: Calls of functions of modules are compiled otherwise with an import in the same text, and differ by their arguments.
MODULES = """
    import json
    from math import *
    import os as system
    from string import ascii_letters as letters

    def many(one=1): return system.path.join(*map(str, range(3)))

    class Used:
        def often(self):
            made = json.dumps(
                {"one": 1}, skipkeys=False, ensure_ascii=True, check_circular=True, allow_nan=True, cls=None,
                indent=None, separators=None, default=None, sort_keys=False
            )
            return made, json.loads(made).get("one"), letters.upper(), pi.hex(), many(), system.path.join("a", "b")
        def never(self):
            return json.made(
                a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10, k=11, l=12, m=13, n=14, o=15, p=16, q=17
            ) + json.loads("1")
"""


SCRIPTS = pytest.mark.parametrize("text", [CACHES, CLASSES, SCOPES, TORCH, MODULES])


@SCRIPTS
def test_what_was_used_comes_along(text: str, cells: Any) -> None:
    module = cells(text + TASK, "from fedgsp import Task\n")
    for _ in range(2):
        assert written(module_of(module.Mine))["Mine"].used() == module.Mine.used()


@SCRIPTS
def test_what_was_used_in_the_cells_of_a_notebook_comes_along(text: str, notebook: Any) -> None:
    module = notebook(["from fedgsp import Task", textwrap.dedent(text), textwrap.dedent(TASK)])
    for _ in range(2):
        assert written(module_of(module.Mine))["Mine"].used() == module.Mine.used()
