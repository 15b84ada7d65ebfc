"""The list of parts and their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import described
from tests.support.outgoing_steps import forget, install
from top_server.cli import LISTED, listed


def test_every_part_and_every_option_is_listed() -> None:
    lines = list(listed())
    for kind, table in LISTED.items():
        for name in table:
            assert f"  {name}: {table[name].help}" in lines, (kind, name)
            for one in described(table[name].options).values():
                assert any(line.strip().startswith(one.name) and one.help in line for line in lines)


def test_one_kind_can_be_listed() -> None:
    assert next(listed("weighing")) == "weighing (--weighing NAME, --weighing-option KEY=VALUE)"
    assert "      refine=false: " in "\n".join(listed("grouping"))
    trim = "      trim=0.1: share of the models that is left out at either end (a number of at least 0 and below 0.5)"
    assert trim in listed("aggregation")
    with pytest.raises(ConfigError, match="there is no kind of part 'colour'"):
        list(listed("colour"))


def test_outgoing_steps_of_packages_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(listed("outgoing")) == ["outgoing (--outgoing NAME, --outgoing-option NAME.KEY=VALUE)"]
    with monkeypatch.context() as patch:
        install(tmp_path, patch)
        assert any(line.startswith("  clip [") for line in listed("outgoing"))
        assert "      norm=1.0: the largest length of an update (a number above 0)" in list(listed("outgoing"))
    forget()
