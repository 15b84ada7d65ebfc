"""That the pages which list something list all of it: every event with its fields, and every flag."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import typer

import fedgsp_node.cli
import top_server.cli
from scripts import settings_page

ROOT = Path(__file__).resolve().parents[1]
COMMANDS: dict[str, Any] = {
    "top-server": typer.main.get_command(top_server.cli.app),
    "fedgsp-node": typer.main.get_command(fedgsp_node.cli.app),
}


def recorded() -> dict[str, set[str]]:
    """Event -> the fields that are written out where it is recorded, `record("kind", field=...)`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "top_server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "record":
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found[part.value].update(keyword.arg for keyword in node.keywords if keyword.arg)
    return found


def rows(page: str) -> dict[str, str]:
    """First cell, without its ticks -> the cells after it, of every table of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([^`|]+)` \|(.*)\|$", text, re.MULTILINE))


def test_every_event_is_described() -> None:
    assert set(rows("docs/events.md")) == set(recorded())


def test_every_field_of_an_event_is_described() -> None:
    described = rows("docs/events.md")
    # What one is said to have "the same" as another needs no list of its own.
    listed = {event: fields for event, fields in recorded().items() if "the same" not in described[event]}
    missing = {
        event: [field for field in fields if f"`{field}`" not in described[event]] for event, fields in listed.items()
    }
    assert {event: fields for event, fields in missing.items() if fields} == {}


def flags() -> set[str]:
    """Those of every command, but for --help."""
    commands = [command for program in COMMANDS.values() for command in (program, *program.commands.values())]
    return {flag for command in commands for option in command.params for flag in option.opts if flag[:2] == "--"}


def test_the_settings_page_names_every_flag() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert sorted(flag for flag in flags() if not re.search(rf"^\| `{flag}(?![\w-])", page, re.MULTILINE)) == []


def test_the_settings_page_is_up_to_date() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page()
