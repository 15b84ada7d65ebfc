"""The lines that import modules, and what they define, for the module that is written for the nodes."""

from __future__ import annotations

import sys
from typing import Any

from fedgsp_runs.attributes import answer
from fedgsp_runs.scripts import MAIN


def alias(module: str) -> str:
    """A name for a module that no script uses."""
    return f"_{module.replace('.', '_')}"


def aliased(module: str) -> str:
    """The line that imports a module by the name that no script uses."""
    return f"import {module} as {alias(module)}"


def imported(name: str, value: Any) -> str | None:
    """The line that imports a value of another module; None if no module has it."""
    module = home(value)
    if module is None:
        return None
    known = value.__name__
    return f"from {module} import {known}" if known == name else f"from {module} import {known} as {name}"


def home(value: Any) -> str | None:
    """The module from which a class or function can be imported by its own name, if there is one."""
    known = answer(value, "__name__")
    module = answer(value, "__module__") or type(value).__module__  # that of `numpy.exp` is only in its type
    if module == MAIN or not isinstance(known, str) or not isinstance(module, str):
        return None
    return module if getattr(sys.modules.get(module), known, None) is value else None
