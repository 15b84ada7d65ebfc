"""What a script uses is compared with what its source says: nodes must not train other code."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.writing import module_of
from tests.support.written_modules import written


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Mine.rate = 5", "Mine.rate was set after the class statement, which says otherwise"),
        ("Base.kind = 'b'", "Base.kind was set after the class statement, which says otherwise"),
        ("Mine.sizes.append(5)", "Mine.sizes was set after the class statement, which says otherwise"),
        ("Mine.further = (1,)", "Mine.further was set after the class statement, which does not set it"),
        ("Mine.further = object()", "Mine.further was set after the class statement, which does not set it"),
        ("Base.further = np.zeros(2)", "Base.further was set after the class statement, which does not set it"),
        ("def loss(self, outputs, y): return 0\nMine.loss = loss", "Mine.loss was set after the class statement"),
        ("Mine.loss = object()", "Mine.loss was set after the class statement, which says otherwise"),
        ("Mine.size = property(lambda self: 1)", "Mine.size was set after the class statement, which does not set it"),
        ("LIMIT = 4", "Mine.limit was set after the class statement, which says otherwise"),
    ],
)
def test_what_is_set_after_the_class_statement_is_refused(cells: Any, text: str, what: str) -> None:
    module = cells(
        """
        from dataclasses import dataclass

        LIMIT = 3

        @dataclass
        class Base(Task):
            kind: str = "a"

        class Mine(Base):
            rate, sizes, limit, missing = 1, [1], LIMIT, float("nan")
            cache, _least = {}, None

            def model(self): return self.limit
            def data(self, client): return None
            loss = lambda self, outputs, y: y
        """
    )
    module.Mine.cache[0] = module.Mine._least = 3
    assert "LIMIT = 3" in module_of(module.Mine)
    exec(text, vars(module))
    with pytest.raises(TaskError, match=what) as caught:
        module_of(module.Mine)
    name = what.partition(" ")[0].partition(".")[2]
    assert caught.value.remedy == (
        f"write {name} into the class, execute it again if it was edited, or call it _{name} if a method sets it"
    )


def test_threads_write_modules_at_once(cells: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp.both", lambda: None, raising=False)
    module = cells("""
        import fedgsp

        class Mine(Task):
            _met = fedgsp.both()
            def model(self): return None
    """)
    monkeypatch.setattr("fedgsp.both", threading.Barrier(2, timeout=20).wait)  # both are executed at this moment
    with ThreadPoolExecutor(2) as threads:
        texts = [*threads.map(module_of, [module.Mine] * 2)]
    assert texts[0] == texts[1]


def test_a_module_that_raises_is_refused_before_a_process_is_started(cells: Any) -> None:
    module = cells("class Mine(Task):\n    num_classes = globals()['n' + 'p'].int64(2)")
    with pytest.raises(TaskError, match="the module that is written for the nodes raises KeyError: 'np'") as caught:
        module_of(module.Mine)
    assert "executed again in this process" in caught.value.remedy


def test_an_attribute_with_another_value_each_time_is_refused_as_one(cells: Any) -> None:
    module = cells("""
        import uuid

        class Mine(Task):
            number = uuid.uuid4().hex
            def model(self): return None
    """)
    with pytest.raises(TaskError, match=r"Mine\.number was .* or gives a new value each time"):
        module_of(module.Mine)


CHANGED = "is not what its source says now: the script was edited, a cell was executed again, or a name"
OTHER_BASE = "a base class of 'Mine' is not the one that its class statement names now"

DEFAULT_OF_A_METHOD = """
tasks = []
for hidden in (16, 32):
    class Mine(Task):
        def __init__(self, hidden=hidden): self.hidden = hidden
        def model(self): return self.hidden
    tasks.append(Mine)
Mine = tasks[0]
"""
DEFAULT_OF_A_FUNCTION = """
rate = 0.1
def step(value, *, rate=rate): return value * rate
rate = 0.5
class Mine(Task):
    def model(self): return step(1)
"""
DEFAULT_CLASS = """
class Layer:
    def size(self): return 1
class Mine(Task):
    def model(self, layer=Layer): return layer().size()
class Layer:
    def size(self): return 2
"""
BASE = """
class Base(Task):
    def loss(self, outputs, y): return 1
class Mine(Base):
    def model(self): return 1
class Base(Task):
    def loss(self, outputs, y): return 2
"""
CHOSEN_BASE = """
class Fast(Task): pass
class Slow(Task): pass
flag = True
class Mine(Fast if flag else Slow):
    def model(self): return 1
flag = False
"""
FLAG = """
flag = True
class Mine(Task):
    if flag:
        def model(self): return 1
    else:
        def model(self): return 2
flag = False
"""
FLAG_OF_A_PRIVATE_METHOD = """
flag = True
class Mine(Task):
    class Inner:
        if not flag:
            def __init__(self): self.value = 1
    def model(self): return self.Inner()
flag = False
"""
ATTRIBUTE = """
class Layer:
    def size(self): return 1
class Mine(Task):
    layers = {"first": Layer}
    layer = Layer
class Layer:
    def size(self): return 2
"""
DECORATOR = """
import functools
def many(function):
    @functools.wraps(function)
    def call(*values): return 2 * function(*values)
    return call
@many
def rows(): return 1
def many(function):
    @functools.wraps(function)
    def call(*values): return 3 * function(*values)
    return call
class Mine(Task):
    def model(self): return rows()
"""
VARIABLE = """
def make(factor):
    def loss(self, outputs, y): return factor * y
    return loss
tasks = []
for k in (1, 2):
    class Mine(Task):
        loss = make(k)
        def model(self): return None
    tasks.append(Mine)
Mine = tasks[0]
"""
VARIABLE_OF_A_DECORATOR = """
import functools
def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def call(*values): return factor[0] * function(*values)
        return call
    return decorate
k = [0.5]
@scaled(k)
def rows(): return 1
k = [2.0]
class Mine(Task):
    def model(self): return rows()
"""
MEMBER = """
import enum
kind = 1
class Kind(enum.Enum):
    A = kind
class Mine(Task):
    def model(self): return Kind.A
kind = 2
"""
FIELD = """
from typing import NamedTuple
rate = 0.1
class Settings(NamedTuple):
    rate: float = rate
class Mine(Task):
    def model(self): return Settings()
rate = 0.5
"""
FACTORY = """
from dataclasses import dataclass, field
from functools import partial
sizes = partial(list, (1, 2))
@dataclass
class Settings:
    sizes: list[int] = field(default_factory=sizes)
class Mine(Task):
    def model(self): return Settings()
sizes = partial(list, (3,))
"""
REGISTERED = """
import functools
@functools.singledispatch
def size(value): return 1
@size.register
def _(value: int): return 2
class Mine(Task):
    def model(self): return size(3)
"""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (DEFAULT_OF_A_METHOD, "the default of hidden in Mine.__init__ is 16 .int., and its def statement would"),
        (DEFAULT_OF_A_FUNCTION, "the default of rate in step is 0.1 .float., and its def statement would give 0.5"),
        (DEFAULT_CLASS, f"Mine.model.layer..size {CHANGED}"),
        (BASE, OTHER_BASE),
        (CHOSEN_BASE, OTHER_BASE),
        (FLAG, f"Mine.model {CHANGED}"),
        (FLAG_OF_A_PRIVATE_METHOD, f"Mine.Inner.__init__ {CHANGED}"),
        (ATTRIBUTE, f"Mine.layer.size {CHANGED}"),
        (DECORATOR, f"rows {CHANGED}"),
        (VARIABLE, "the variable factor around Mine.loss is 1 .int., and executing the definition again gives 2"),
        (VARIABLE_OF_A_DECORATOR, r"the variable factor around rows is \[0.5\] .list., and executing the definition"),
        (MEMBER, f"Kind.A {CHANGED}"),
        (FIELD, f"Settings.rate {CHANGED}"),
        (FACTORY, f"Settings.sizes {CHANGED}"),
        (REGISTERED, "functions are registered for 'size' after its def statement"),
    ],
)
def test_what_its_source_would_make_otherwise_now_is_refused(text: str, what: str, cells: Any) -> None:
    module = cells(text)
    with pytest.raises(TaskError, match=what) as caught:
        module_of(module.Mine)
    assert caught.value.remedy


REGISTRY = """
class Rule:
    rules = {}
    def __init_subclass__(cls): Rule.rules[cls.__name__] = cls
class Mean(Rule): pass
class Median(Rule): pass
class Mine(Task):
    def model(self): return Rule.rules["Mean"]
"""


@pytest.mark.parametrize("used", ["None", "Mean"])
def test_a_registry_that_would_hold_less_on_the_nodes_is_refused(used: str, cells: Any) -> None:
    module = cells(f"{REGISTRY}    def data(self, client): return {used}")
    with pytest.raises(TaskError, match=r"Rule\.rules holds \w+, and would not hold it on the nodes") as caught:
        module_of(module.Mine)
    assert "by name in a method of the task" in caught.value.remedy


def test_a_registry_comes_along_if_the_task_names_what_it_holds(cells: Any) -> None:
    found = written(module_of(cells(f"{REGISTRY}    def data(self, client): return Mean, Median").Mine))
    assert found["Mine"].model(None) is found["Mean"]


def test_a_base_class_that_is_defined_again_with_the_same_source_comes_along(cells: Any) -> None:
    module = cells(BASE.replace("return 2", "return 1"))
    assert module.Mine.__bases__ != (module.Base,)
    assert written(module_of(module.Mine))["Mine"].loss(None, 1, 1) == 1


SCRIPT = """
    import enum
    from dataclasses import dataclass, field
    from typing import NamedTuple

    class Kind(enum.Enum):
        A = 1

    class Limits(NamedTuple):
        least: float = 0.1

    def rate(): return 0.1

    @dataclass
    class Settings:
        size: int = 1
        kind: Kind = Kind.A
        sizes: list[int] = field(default_factory=lambda: [1])

    class Net:
        def size(self): return Settings().size, Limits()

    class Mine(Task):
        @staticmethod
        def model(): return rate(), Net().size()
"""


def edit(module: ModuleType, old: str, new: str) -> None:
    """Gives the file of a script another text, as an editor does while the script is executed."""
    assert module.__file__ is not None
    text = Path(module.__file__).read_text()
    assert old in text
    Path(module.__file__).write_text(text.replace(old, new))


def test_a_script_that_is_edited_after_its_task_was_written_is_written_as_before(cells: Any) -> None:
    """A sweep writes the module of its task for every run, and lasts for hours."""
    module = cells(SCRIPT)
    text = module_of(module.Mine)
    edit(module, "def rate(): return 0.1", "def other(): return 0.5")
    edit(module, "class Net:", "class Further: pass")
    assert module_of(module.Mine) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 0.1", "return 0.5"),
        ("size: int = 1", "size: int = 2"),
        ("size: int = 1", "size: int = 1\n        rate: float = 0.5"),
        ("def size(self): return Settings", "def size(self): return 2 * Settings"),
        ("A = 1", "A = 2"),
        ("least: float = 0.1", "least: float = 0.2"),
        ("lambda: [1]", "lambda: [2]"),
        ("return rate(), Net().size()", "return Net().size(), rate()"),
        ("class Mine(Task):", "class Mine(Task):\n        def _more(self): return 1"),
        ("def rate():", "def rates():"),
        ("def rate():", "def rate(:"),
    ],
)
def test_a_script_that_was_edited_before_is_refused(old: str, new: str, cells: Any) -> None:
    module = cells(SCRIPT)
    edit(module, old, new)
    with pytest.raises(TaskError, match=r"execute (the definition|the script|it) again"):
        module_of(module.Mine)


def test_an_edit_that_only_moves_lines_changes_nothing(cells: Any) -> None:
    text = module_of(cells(SCRIPT).Mine)
    module = cells(SCRIPT)
    edit(module, "import math", "# A remark.\n\nimport math")
    assert module_of(module.Mine) == text
