"""The generated pages are up to date, and list every flag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

import fedgsp_node.cli
import top_server.cli
from scripts import events_page, settings_page

ROOT = Path(__file__).resolve().parents[1]
COMMANDS: dict[str, Any] = {
    "top-server": typer.main.get_command(top_server.cli.app),
    "fedgsp-node": typer.main.get_command(fedgsp_node.cli.app),
}


def test_the_page_of_events_is_up_to_date() -> None:
    assert events_page.PAGE.read_text(encoding="utf-8") == events_page.page()


def flags() -> set[str]:
    """Those of every command, but for --help."""
    commands = [command for program in COMMANDS.values() for command in (program, *program.commands.values())]
    return {flag for command in commands for option in command.params for flag in option.opts if flag[:2] == "--"}


def test_the_settings_page_names_every_flag() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert sorted(flag for flag in flags() if not re.search(rf"^\| `{flag}(?![\w-])", page, re.MULTILINE)) == []


def test_the_settings_page_is_up_to_date() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page()
