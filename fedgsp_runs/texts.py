"""The arguments of `run` as settings files and task options have them: as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import tomli_w

from fedgsp.errors import ConfigError
from fedgsp_runs.values import shown


def as_toml(told: Mapping[str, Any]) -> str:
    """Settings as a file."""
    return tomli_w.dumps({key: _plain(key, value) for key, value in told.items() if value is not None})


def _plain(name: str, value: Any) -> Any:
    """A setting as TOML has it."""
    if isinstance(value, Mapping):
        return {str(key): as_text(one) for key, one in value.items()}
    if isinstance(value, PurePath):
        return str(Path(value).absolute())
    if isinstance(value, list | tuple | set | frozenset):
        found: Any = [as_scalar(one) for one in value]
        known = all(isinstance(one, str | int | float) for one in found)
    else:
        found = as_scalar(value)
        known = isinstance(found, str | int | float)
    if not known:
        raise ConfigError(
            f"{name} is {shown(value)}", "give a text, a number, True or False, a path, or a list or table of these"
        )
    return found


def as_scalar(value: Any) -> Any:
    """A number or text of NumPy as that of Python; any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value


def as_text(value: Any) -> str:
    """An option as text."""
    value = as_scalar(value)
    if isinstance(value, PurePath):
        return str(Path(value).absolute())
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(as_text, value)) if isinstance(value, list | tuple) else str(value)
