"""Flags in errors become what Python has in their place."""

from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp_runs.words import in_python


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        ("to add rounds, use --extend with --rounds", "to add rounds, use `extend` with `rounds`"),
        ("continue it first: top-server --resume runs/a", "continue it first: `resume` runs/a"),
        ("--out x.png cannot be written", "`out` x.png cannot be written"),
        (
            "start it again: top-server --config a/b.toml --run-dir a",
            "start it again: top-server --config a/b.toml --run-dir a",
        ),
        (
            "call `fedgsp-node check --task x`, or give --clients",
            "call `fedgsp-node check --task x`, or give `clients`",
        ),
        ("finish it (top-server --resume a), or give --model", "finish it (`resume` a), or give `name`"),
        ("--resume-all is no flag", "--resume-all is no flag"),
    ],
)
def test_a_flag_becomes_what_python_has(told: str, heard: str) -> None:
    with pytest.raises(ConfigError) as caught, in_python():
        raise ConfigError(told)
    assert str(caught.value) == heard
