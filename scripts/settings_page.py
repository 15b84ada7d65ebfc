"""Makes docs/settings.md from the settings of the programs; with --check, only says whether the page is up to date.

`panels_of_runs` reads the settings of a run, `panel_of` the flags of a command. The code below them knows only `Row`.
"""

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
from top_server.config import FIELDS, TYPES, choices, flag

if typing.TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
#: More names than this stand in a list below the table, not in a cell of it.
MOST_IN_A_CELL = 6

INTRODUCTION = """\
# Settings

<!-- Made by scripts/settings_page.py. Do not edit this page: edit the help texts, then run that script. -->

This page lists every flag of `top-server` and `fedgsp-node`. `top-server --help` and `fedgsp-node start --help` print
the same texts.

A run reads its settings from flags and, with `--config FILE`, from a TOML file. Flags override the file. In the file a
setting has the name of its flag with underscores: `--learning-rate 0.05` is `learning_rate = 0.05`. Options
(`--task-option KEY=VALUE`) are tables: `[task_option]`, then `KEY = VALUE`. `config.toml` in a run directory is such a
file: `top-server --config RUN_DIR/config.toml` repeats that run in a new directory.

An empty default means that the setting is off, or that the scheme decides. [Schemes](schemes.md) has the options of
groupings, trainings, aggregations and merges; [tasks](tasks.md) has the options of tasks.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One flag: its placeholder, its default and its limits as text, and what it does."""

    flag: str
    value: str
    default: str
    limits: str
    help: str


def panels_of_runs() -> dict[str, list[Row]]:
    """The settings of a run, by panel."""
    panels: dict[str, list[Row]] = {}
    for name, field in FIELDS.items():
        rules = field.metadata
        row = Row(
            flag=flag(name),
            value="KEY=VALUE" if rules.get("options_of") else rules.get("metavar") or _placeholder(TYPES[name]),
            default=_default(None if rules.get("options_of") else field.default),
            limits=_names(choices(name)) or _limits(rules),
            help=rules["help"],
        )
        panels.setdefault(rules["panel"], []).append(row)
    return panels


def panel_of(command: Any, but: frozenset[str] = frozenset({"--help"})) -> list[Row]:
    """The flags and arguments of a command as typer made it, without the flags in `but`."""
    rows = []
    for option in command.params:
        shown = option.opts[0] if option.opts[0].startswith("--") else option.opts[0].upper()
        if shown in but:
            continue
        is_switch = not shown.startswith("--") or option.is_flag
        default = None if is_switch else option.default
        least, most = (getattr(option, bound, None) for bound in ("min", "max"))
        metavar = option.metavar or ""
        row = Row(
            flag=shown,
            value="" if is_switch else "NAME" if "|" in metavar else metavar or _placeholder(option.bare_type()),
            default="required" if option.required else _default(default),
            limits=_names(tuple(metavar.split("|"))) if "|" in metavar else _limits({"least": least, "most": most}),
            help=option.help or "",
        )
        rows.append(row)
    return rows


def page() -> str:
    """The whole page."""
    leading: Any = typer.main.get_command(top_server.cli.app)
    node: Any = typer.main.get_command(fedgsp_node.cli.app)
    of_runs = panels_of_runs()
    in_tables = frozenset(row.flag for rows in of_runs.values() for row in rows) | {"--help"}
    parts = [INTRODUCTION, "## `top-server`\n"]
    for panel, rows in of_runs.items():
        parts += [f"### {panel}\n", *_table(rows)]
    parts += ["### Output and resuming\n", *_table(panel_of(leading, in_tables))]
    for name, command in leading.commands.items():
        parts += [f"## `top-server {name}`\n", f"{command.help}\n", *_table(panel_of(command))]
    parts += ["## `fedgsp-node`\n", f"{node.help}\n", *_table(panel_of(node))]
    for name, command in node.commands.items():
        parts += [f"## `fedgsp-node {name}`\n", f"{command.help}\n", *_table(panel_of(command))]
    return "\n".join(parts)


def _table(rows: list[Row]) -> Iterator[str]:
    """A Markdown table of these rows; long lists of names follow it."""
    long = [row for row in rows if row.limits.count(", ") >= MOST_IN_A_CELL]
    lines = ["| Flag | Meaning | Default | Values |", "|---|---|---|---|"]
    for row in rows:
        limits = "see below" if row in long else row.limits
        what = f"{row.flag} {row.value}".strip()
        lines.append(f"| `{what}` | {_cell(row.help)} | {row.default} | {limits} |")
    yield "\n".join(lines) + "\n"
    for row in long:
        yield textwrap.fill(f"Values of `{row.flag}`: {row.limits}.", 120, break_on_hyphens=False) + "\n"


def _placeholder(annotated: Any) -> str:
    """What stands for a value of this type, which may be a union with None."""
    (plain,) = (kind for kind in typing.get_args(annotated) or (annotated,) if kind is not type(None))
    names = {"int": "N", "float": "NUMBER", "str": "NAME", "Path": "PATH"}
    return names[plain if isinstance(plain, str) else plain.__name__]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(value: object) -> str:
    return "" if value is None else f"`{value}`"


def _limits(rules: Mapping[str, Any]) -> str:
    words = {"above": "above", "least": "at least", "most": "at most"}
    return ", ".join(f"{word} {rules[rule]:,}" for rule, word in words.items() if rules.get(rule) is not None)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page is out of date")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run `python scripts/settings_page.py`")


if __name__ == "__main__":
    main()
