"""What every declaration must keep, whatever its kind."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.parts import Part, Parts
from fedgsp.settings.fields import described, values_of

#: Looks declarations up in a fresh process, which must not import torch for them; names the kind that does.
_LOOK_UP = """
import sys
from top_server.choosing import NAMES
from top_server.cli import LISTED
for kind, name in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    (LISTED.get(kind) or NAMES[kind])[name].read({})
    if "torch" in sys.modules:
        sys.exit(f"the declaration of {kind} {name} imports torch")
"""


def check_declaration(table: Parts[Any], name: str) -> Part:
    """Help, options and code of a part; returns its declaration."""
    part: Part = table[name]
    assert (part.kind, part.name) == (table.kind, name)
    assert part.help, "it has no help"
    assert not part.help.endswith("."), "its help ends with a full stop"
    assert dataclasses.is_dataclass(part.options), "its options are no dataclass"
    assert part.options.__dataclass_params__.frozen, "its options can be changed"  # type: ignore[attr-defined]
    for one in described(part.options).values():
        assert one.help, f"option {one.name} has no help"
    assert part.read({}) == part.options(), "its options have no defaults"
    assert list(values_of(part.read({}))) == [one.name for one in described(part.options).values()]
    with pytest.raises(ConfigError, match=f"{table.kind} {name} has no option 'no_such_option'"):
        part.read({"no_such_option": "1"})
    assert part.load() is not None
    return part


def check_light(names: Mapping[str, str]) -> None:
    """A process that only needs to know of parts, given by kind, does not import torch for them."""
    command = [sys.executable, "-c", _LOOK_UP, *(word for pair in names.items() for word in pair)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
