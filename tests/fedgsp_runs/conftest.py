"""What the tests of runs from Python share."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HEAD = """
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from torch import nn as layers

from fedgsp import Task
"""


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Executes a text as a notebook or script would, as the module __main__."""

    def execute(text: str, head: str = HEAD) -> ModuleType:
        path = tmp_path / "cells.py"
        # Within a second, a file of the same size would be taken for the one that was compiled before.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        path.write_text(head + textwrap.dedent(text), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("__main__", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "__main__", module)
        spec.loader.exec_module(module)
        return module

    return execute


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Executes texts as IPython does: statement by statement, and with their lines where Python looks for files."""

    def execute(texts: list[str]) -> ModuleType:
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        inputs = vars(module)["In"] = [""]
        for text in texts:
            inputs.append(text)
            name = f"ipykernel_7/{hash(text)}.py"
            monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
            for statement in ast.parse(text).body:
                exec(compile(ast.Module([statement], []), name, "exec", dont_inherit=True), vars(module))
        return module

    return execute
