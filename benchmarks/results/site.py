"""Makes and checks all pages and pictures of docs/results."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import pages
from benchmarks.results.code import ROOT
from benchmarks.results.pictures import picture
from benchmarks.results.store import Kept
from fedgsp.errors import ConfigError

RESULTS = ROOT / "docs" / "results"
#: The page about the others has no results of its own.
_ABOUT = "README.md"
_KINDS = ("tables", "values", "pictures")


def make(results: Path = RESULTS) -> list[pages.Problem]:
    """Writes every page and picture that is not what the summaries say; returns what people must correct."""
    kept, wrong = Kept(results / "data"), []
    for path, described in described_pages(results):
        text = path.read_text(encoding="utf-8")
        made = pages.applied(text, pages.changes(path.name, text, described, kept))
        wrong += pages.problems(path.name, made, [])
        if made != text:
            path.write_text(made, encoding="utf-8")
        for file, data in _pictures(path, described, kept):
            if not file.is_file() or file.read_bytes() != data:
                file.write_bytes(data)
    return wrong


def check(results: Path = RESULTS) -> list[pages.Problem]:
    """What is not what the summaries say; changes nothing."""
    kept, wrong = Kept(results / "data"), []
    for path, described in described_pages(results):
        text = path.read_text(encoding="utf-8")
        wrong += pages.problems(path.name, text, pages.changes(path.name, text, described, kept))
        for file, data in _pictures(path, described, kept):
            if not file.is_file() or file.read_bytes() != data:
                wrong.append(pages.Problem(file.name, 0, "this picture is not what the summaries give"))
    return wrong


def described_pages(results: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every page of results, with the descriptions in tables/PAGE.toml; raises ConfigError."""
    for path in sorted(results.glob("*.md")):
        if path.name == _ABOUT:
            continue
        file = results / "tables" / f"{path.stem}.toml"
        try:
            described = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file.name} cannot be read: {error}", "correct that place") from None
        if unknown := [kind for kind in described if kind not in _KINDS]:
            raise ConfigError(f"{file.name} has {unknown[0]!r}", f"describe {', '.join(_KINDS)}")
        yield path, described


def _pictures(page: Path, described: dict[str, Any], kept: Kept) -> Iterator[tuple[Path, bytes]]:
    text = page.read_text(encoding="utf-8")
    for name, description in described.get("pictures", {}).items():
        file = page.with_name(f"{name}.png")
        if f"]({file.name})" not in text:
            raise ConfigError(f"{page.name} does not show {file.name}", "show it, or remove its description")
        data = picture(description, kept, f"{page.name}, picture {name}")
        if data is not None:
            yield file, data
