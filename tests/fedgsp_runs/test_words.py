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
        ("--resume-all is no flag", "--resume-all is no flag"),
    ],
)
def test_a_flag_becomes_what_python_has(told: str, heard: str) -> None:
    with pytest.raises(ConfigError) as caught, in_python():
        raise ConfigError(told)
    assert str(caught.value) == heard
