from __future__ import annotations

import sys

import pytest
import typer

from fedgsp import commands
from fedgsp.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["start", "--name", "S\udcfcd"], r"--name S\udcfcd"),
        (["start", "--name=S\udcfcd"], r"--name=S\udcfcd"),
        (["--task-option", "a=b", "--task-option", "data=cw\udcff/data"], r"--task-option data=cw\udcff/data"),
        (["--name=a", "--name=S\udcfcd"], r"--name=S\udcfcd"),
        (["picture", "r\udcff"], r"r\udcff"),
        (["--n\udcff", "x"], r"--n\udcff"),
    ],
)
def test_what_is_not_text_is_refused_in_the_name_of_its_flag_before_anything_reads_it(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["top-server", *arguments])
    assert commands.run(typer.Typer(), "top-server") == ConfigError.exit_code
    assert capsys.readouterr().err == f"error: {told} is not UTF-8; write it in UTF-8\n"


def test_letters_of_any_language_are_text() -> None:
    commands.check_text(["--name", "Klinik Süd", "--task-option", "data=/данные", "數據"])
