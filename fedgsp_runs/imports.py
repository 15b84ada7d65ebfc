"""The lines that import modules, and what they define, for the module that is written for the nodes."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from fedgsp_runs.aliases import is_of_types
from fedgsp_runs.attributes import answer
from fedgsp_runs.folders import is_installed
from fedgsp_runs.scripts import MAIN, texts

_ABSENT = object()


def alias(module: str) -> str:
    """A name for a module that no script uses."""
    return f"_{module.replace('.', '_')}"


def aliased(module: str) -> str:
    """The line that imports a module by the name that no script uses."""
    return f"import {module} as {alias(module)}"


def imported(name: str, value: Any) -> str | None:
    """The line that imports a class or function of another module; None if no module has it by its own name."""
    module = home(value)
    return None if module is None else _line(module, value.__name__, name)


def home(value: Any) -> str | None:
    """The module from which a class or function can be imported by its own name, if there is one."""
    known = answer(value, "__name__")
    module = answer(value, "__module__") or type(value).__module__  # that of `numpy.exp` is only in its type
    if module == MAIN or not isinstance(known, str) or not isinstance(module, str):
        return None
    return module if getattr(sys.modules.get(module), known, None) is value else None


def imported_as_in_the_script(name: str, value: Any) -> str | None:
    """The line that imports a value, as an import statement of the script does; None if the script imports it nowhere.

    It is for values that have no name of their own.

    An object of a module of the user's own is not imported: the script may have changed it.
    """
    for module, known in _origins(name):
        found = getattr(sys.modules.get(module), known, _ABSENT)
        if found is value and (is_of_types(value) or is_installed(module)):
            return _line(module, known, name)
    return None


def _line(module: str, known: str, name: str) -> str:
    return f"from {module} import {known}" if known == name else f"from {module} import {known} as {name}"


def _origins(name: str) -> Iterator[tuple[str, str]]:
    """The modules from which the script imports a name, and what they call it."""
    package = getattr(sys.modules[MAIN], "__package__", None)
    for node in itertools.chain.from_iterable(map(_imports, texts())):
        for one in node.names:
            if name == (one.asname or one.name) or one.name == "*":
                with contextlib.suppress(ImportError):  # a relative import, and a script is in no package
                    module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                    yield module, name if one.name == "*" else one.name


@lru_cache(maxsize=256)
def _imports(text: str) -> list[ast.ImportFrom]:
    with contextlib.suppress(SyntaxError, ValueError):  # a cell with commands of the notebook
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return []
