"""The list of parts and their options."""

from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import described
from top_server.choosing import TABLES
from top_server.parts_listed import listed


def test_every_part_and_every_option_is_listed() -> None:
    lines = list(listed())
    for kind, table in TABLES.items():
        for name in table:
            assert f"  {name}: {table[name].help}" in lines, (kind, name)
            for one in described(table[name].options).values():
                assert any(line.strip().startswith(one.name) and one.help in line for line in lines)


def test_one_kind_can_be_listed() -> None:
    assert next(listed("weighing")) == "weighing (--weighing NAME, --weighing-option KEY=VALUE)"
    assert "      refine=false: " in "\n".join(listed("grouping"))
    assert list(listed("aggregation"))[-1] == (
        "      trim=0.1: share of the models that is left out at either end (a number of at least 0 and below 0.5)"
    )
    with pytest.raises(ConfigError, match="there is no kind of part 'colour'"):
        list(listed("colour"))
