"""What a script uses is compared with what its source says: nodes must not train other code."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.writing import module_of


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Mine.rate = 5", "Mine.rate was set after the class statement, which says otherwise"),
        ("Base.kind = 'b'", "Base.kind was set after the class statement, which says otherwise"),
        ("Mine.sizes.append(5)", "Mine.sizes was set after the class statement, which says otherwise"),
        ("Mine.further = (1,)", "Mine.further was set after the class statement, which does not set it"),
        ("def loss(self, outputs, y): return 0\nMine.loss = loss", "Mine.loss was set after the class statement"),
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
    assert caught.value.remedy == f"write {name} into the class"


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
    with pytest.raises(TaskError, match="the module that is written for the nodes raises KeyError: 'np'"):
        module_of(module.Mine)
