"""What pages of docs/results have of summaries: tables, values in sentences, and marks of what cannot be made again.

<!-- results: NAME -->            up to <!-- end -->: the table NAME
<!-- value: NAME -->46.8<!-- end -->      within a line: the value NAME
<!-- not recomputable: WHY -->    the table below has no summaries; a sentence for readers follows
<!-- page not recomputable: WHY -->       the same for all tables of the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from benchmarks.results import tables
from benchmarks.results.store import Kept
from fedgsp.errors import ConfigError

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^<!-- results: (\S+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"<!-- value: (\S+) -->(.*?)<!-- end -->")
_MARK = re.compile(
    r"^<!-- (page )?not (recomputable(?: from summaries)?: .+) -->\n((?:\*Not recomputable.*\n)?)", re.MULTILINE
)
_BEGIN = re.compile(r"<!-- (results|value): (\S+) -->")
#: The line below the head of a table.
_RULE = re.compile(r"^.*\n\|[ :|-]+\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Change:
    """What stands in a page at characters `begin` to `end`, and what belongs there."""

    begin: int
    end: int
    #: What makes the text, for people: "table accuracy".
    what: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A line of a page that is wrong."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def changes(page: str, text: str, described: Mapping[str, Any], kept: Kept) -> list[Change]:
    """Everything that is made in a page, in the order of the text; `described` has its tables and values.

    Raises ConfigError for a block without an end, and for names that only one of page and description has.
    """
    plain = _without_code(text)
    found = [*_blocks(page, plain, text, described, kept), *_values(page, plain, described, kept), *_marks(plain)]
    begun = [(kind, name) for kind, name in _BEGIN.findall(plain)]
    used = {change.what for change in found} | {f"table {name}" for name in _left(plain, described, kept)}
    for kind, name in begun:
        if f"{'table' if kind == 'results' else 'value'} {name}" not in used:
            raise ConfigError(f"{page}: {kind} {name} has no end", "write <!-- end --> behind it")
    for kind in ("table", "value"):
        for name in described.get(f"{kind}s", {}):
            if f"{kind} {name}" not in used:
                raise ConfigError(f"{page} has no {kind} {name}", "add it to the page, or remove its description")
    return sorted(found, key=lambda change: change.begin)


def applied(text: str, found: list[Change]) -> str:
    """The text with every change made."""
    parts, position = [], 0
    for change in found:
        parts += [text[position : change.begin], change.expected]
        position = change.end
    return "".join([*parts, text[position:]])


def problems(page: str, text: str, found: list[Change]) -> list[Problem]:
    """The first wrong line of each change, and every table that is neither made nor marked."""
    wrong = [_problem(page, text, change) for change in found if change.found != change.expected]
    return wrong + [Problem(page, line, "this table is neither made from summaries nor marked") for line in bare(text)]


def bare(text: str) -> Iterator[int]:
    """The lines of tables that are not in a block, and have no mark above them."""
    plain = _without_code(text)
    marks = list(_MARK.finditer(plain))
    if any(mark[1] for mark in marks):
        return
    blocks = [block.span() for block in _BLOCK.finditer(plain)]
    for table in _RULE.finditer(plain):
        made = any(begin <= table.start() < end for begin, end in blocks)
        marked = any(not plain[mark.end() : table.start()].strip() for mark in marks if mark.end() <= table.start())
        if not made and not marked:
            yield _line(text, table.start())


def _blocks(page: str, plain: str, text: str, described: Mapping[str, Any], kept: Kept) -> Iterator[Change]:
    left = _left(plain, described, kept)
    for block in _BLOCK.finditer(plain):
        name, begin, end = block[1], *block.span(2)
        if inner := _BEGIN.search(block[2]):
            raise ConfigError(f"{page}: results {name} has no end before {inner[0]}", "write <!-- end --> there")
        description = _described(page, described, "table", name)
        if name in left:
            continue
        if _marked(plain, block.start()) and tables.has_runs(description, kept):
            raise ConfigError(
                f"{page}: table {name} has summaries and is marked as not recomputable", "remove the mark"
            )
        lines = tables.table(description, kept, f"{page}, table {name}")
        yield Change(begin, end, f"table {name}", text[begin:end], "\n" + "\n".join(lines) + "\n\n")


def _left(plain: str, described: Mapping[str, Any], kept: Kept) -> set[str]:
    """The tables that stay as they are: they are marked, and no summary of them is kept."""
    return {
        block[1]
        for block in _BLOCK.finditer(plain)
        if _marked(plain, block.start())
        and block[1] in described.get("tables", {})
        and not tables.has_runs(described["tables"][block[1]], kept)
    }


def _values(page: str, plain: str, described: Mapping[str, Any], kept: Kept) -> Iterator[Change]:
    for found in _VALUE.finditer(plain):
        text = tables.value(_described(page, described, "value", found[1]), kept, f"{page}, value {found[1]}")
        yield Change(*found.span(2), f"value {found[1]}", found[2], text)


def _marks(plain: str) -> Iterator[Change]:
    for mark in _MARK.finditer(plain):
        yield Change(*mark.span(3), "mark", mark[3], f"*Not {mark[2]}.*\n")


def _marked(plain: str, position: int) -> bool:
    """Whether the nearest text above a position is a mark."""
    return any(not plain[mark.end() : position].strip() for mark in _MARK.finditer(plain, 0, position))


def _described(page: str, described: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    known = described.get(f"{kind}s", {})
    if name not in known:
        raise ConfigError(f"{page}: no {kind} is called {name}", f"describe it in docs/results/tables: {kind}s.{name}")
    found: Mapping[str, Any] = known[name]
    return found


def _problem(page: str, text: str, change: Change) -> Problem:
    pairs = zip_longest(change.found.splitlines(), change.expected.splitlines())
    offset, (found, expected) = next(
        ((number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]),
        (0, (change.found, change.expected)),
    )
    there = "nothing" if found is None else repr(found)
    wanted = "nothing" if expected is None else repr(expected)
    return Problem(
        page, _line(text, change.begin) + offset, f"{change.what}: found {there}, and {wanted} is what belongs there"
    )


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _without_code(text: str) -> str:
    """The text with blocks of code as blanks, so that positions stay."""
    return _FENCED.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
