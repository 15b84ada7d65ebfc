"""Generates docs/settings.md from the programs' settings. With --check, only says whether the page is up to date."""

from __future__ import annotations

import argparse
import sys
import textwrap
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import fedgsp_node.cli
import top_server.cli
from fedgsp.settings.checks import choices, flag
from fedgsp.settings.fields import described
from fedgsp.settings.node_check import CheckSettings
from fedgsp.settings.run import GroupingServiceSettings, NodeSettings, RunConfig
from fedgsp.settings.web import WebSettings
from top_server.choosing import NAMES

if typing.TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedgsp.settings.fields import Described

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
WIDTH = 120
#: A cell of a table holds at most this many names. More names follow the table.
MOST_IN_A_CELL = 6
#: Placeholder for the value of a flag by type, unless the setting defines its own.
PLACEHOLDERS = {int: "N", float: "NUMBER", str: "NAME", Path: "PATH", dict: "KEY=VALUE", tuple: "NAME", bool: ""}
BOUNDS = {"above": "above", "least": "at least", "most": "at most", "below": "below"}

INTRODUCTION = """\
# Settings

<!-- Made by scripts/settings_page.py. Do not edit this page: edit the help texts, then run that script. -->

This page lists every flag of `top-server` and `fedgsp-node`. `--help` after a program or a command prints the same
texts. [Your own parts](parts.md) and `top-server parts` add values and options.

A program reads its settings from flags and, with `--config FILE`, from a TOML file. Flags override the file. In the
file a setting has the name of its flag with underscores: `--learning-rate 0.05` is `learning_rate = 0.05`. Options
(`--task-option KEY=VALUE`) are tables: `[task_option]`, then `KEY = VALUE`. `config.toml` in a run directory is such a
file: `top-server --config RUN_DIR/config.toml` repeats that run in a new directory.

An empty default means that the setting is off, that its text names the default, or that the scheme decides.
[Schemes](schemes.md) has the options of groupings, trainings, aggregations and merges; [tasks](tasks.md) has the
options of tasks. `top-server parts` prints all options with their defaults.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One flag: how it is written, what it does, and its default and allowed values as text."""

    flag: str
    help: str
    default: str = ""
    values: str = ""


def page() -> str:
    """The text of the page."""
    leading: Any = typer.main.get_command(top_server.cli.app)
    node: Any = typer.main.get_command(fedgsp_node.cli.app)
    parts = [INTRODUCTION]
    parts += _section("top-server", leading, RunConfig, NAMES)
    parts += _section("top-server picture", leading.commands["picture"])
    parts += _section("top-server report", leading.commands["report"])
    parts += _section("top-server export", leading.commands["export"])
    parts += _section("top-server web", leading.commands["web"], WebSettings)
    for command in ("audit", "parts", "invite", "assign", "operator", "revoke", "kubernetes", "slurm"):
        parts += _section(f"top-server {command}", leading.commands[command])
    parts += _section("top-server grouping-service", leading.commands["grouping-service"], GroupingServiceSettings)
    parts += _section("fedgsp-node", node)
    parts += _section("fedgsp-node start", node.commands["start"], NodeSettings)
    parts += _section("fedgsp-node check", node.commands["check"], CheckSettings, known=NodeSettings)
    parts += _section("fedgsp-node enrol", node.commands["enrol"])
    parts += _section("fedgsp-node policy", node.commands["policy"])
    parts += _section("fedgsp-node export", node.commands["export"])
    parts += _section("fedgsp-node evaluate", node.commands["evaluate"])
    parts += _section("fedgsp-node receipts", node.commands["receipts"])
    return "\n".join(parts)


def _section(
    name: str,
    command: Any,
    kind: type[Any] | None = None,
    names: Mapping[str, Any] | None = None,
    known: type[Any] | None = None,
) -> list[str]:
    """The section of a command: its help text, its settings by panel without those of `known`, its other flags."""
    panels: dict[str, list[Row]] = {}
    settings = described(kind).values() if kind else ()
    for one in settings:
        if known is not None and one.field in described(known):
            continue
        panels.setdefault(one.metadata.get("panel") or "Settings", []).append(_row(one, choices(one, names or {})))
    shown = {flag(one.field) for one in settings} | {"--help"}
    others = [_plain_row(option) for option in command.params if option.opts[0] not in shown]
    lines = [f"## `{name}`\n", f"{command.help}\n"]
    tables = [*panels.items(), ("Other flags", others)]
    if len(panels) == 1:  # one short table
        tables = [("", [row for _, rows in tables for row in rows])]
    for panel, rows in tables:
        lines += [f"### {panel}: `{name}`\n" if len(tables) > 1 else "", *_table(rows)] if rows else []
    return [line for line in lines if line]


def _row(one: Described, names: tuple[str, ...]) -> Row:
    """The row of a setting. Its values are `names`, if there are any."""
    bounds = [f"{word} {one.rules[rule]:,}" for rule, word in BOUNDS.items() if one.rules[rule] is not None]
    off = one.type is bool or one.default in (None, {}, ())
    default = "required" if one.default == "" else "" if off else f"`{one.default}`"
    written = f"{flag(one.field)} {one.metavar or PLACEHOLDERS[one.type]}".strip()
    return Row(written, one.help, default, ", ".join(f"`{name}`" for name in names) or ", ".join(bounds))


def _plain_row(option: Any) -> Row:
    """The row of a flag or argument that is no setting, such as --version."""
    name = option.opts[0] if option.opts[0].startswith("--") else option.opts[0].upper()
    empty = option.default is None or option.default is False or option.default in ("", (), [])
    default = "required" if option.required else "" if empty else f"`{option.default}`"
    return Row(f"{name} {option.metavar or ''}".strip(), option.help, default)


def _table(rows: list[Row]) -> Iterator[str]:
    """A Markdown table of these rows. Long lists of names follow the table."""
    long = [row for row in rows if row.values.count(", ") >= MOST_IN_A_CELL]
    lines = ["| Flag | Meaning | Default | Values |", "|---|---|---|---|"]
    for row in rows:
        meaning, values = row.help.replace("|", "\\|"), "see below" if row in long else row.values
        lines.append(f"| `{row.flag}` | {meaning} | {row.default} | {values} |")
    yield "\n".join(lines) + "\n"
    for row in long:
        yield textwrap.fill(f"Values of `{row.flag}`: {row.values}.", WIDTH, break_on_hyphens=False) + "\n"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change no file; exit code 1 if the page is out of date")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run `make pages`")


if __name__ == "__main__":
    main()
