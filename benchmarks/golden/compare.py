"""Compares the results of two checkouts, case by case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Compared:
    """One case: how much there was to compare in both, and what differs."""

    name: str
    rounds: int
    models: int
    differences: tuple[str, ...]


def compare(one: Record, other: Record) -> list[Compared]:
    """Every case that one of two results has, in their order; a case that the other lacks differs."""
    names = dict.fromkeys([*one["cases"], *other["cases"]])
    return [_case(name, one["cases"].get(name), other["cases"].get(name)) for name in names]


def markdown(one: Record, other: Record, compared: list[Compared]) -> str:
    """A table of all cases, with totals."""
    lines = [f"{side}: {_described(result)}\n" for side, result in (("A", one), ("B", other))]
    lines += ["| case | rounds | models | equal |", "|---|---|---|---|"]
    for row in compared:
        shown = list(row.differences[:_MOST_SHOWN])
        shown += [f"{len(row.differences) - len(shown)} more"] if len(row.differences) > len(shown) else []
        # A bar would end the cell.
        equal = f"**no**: {'; '.join(shown)}".replace("|", "/") if shown else "yes"
        lines.append(f"| {row.name} | {row.rounds} | {row.models} | {equal} |")
    equal_cases = sum(not row.differences for row in compared)
    totals = [sum(row.rounds for row in compared), sum(row.models for row in compared)]
    lines.append(f"| **{len(compared)} cases** | {totals[0]} | {totals[1]} | **{equal_cases} of {len(compared)}** |")
    return "\n".join(lines)


def _case(name: str, one: Record | None, other: Record | None) -> Compared:
    if one is None or other is None:
        return Compared(name, 0, 0, (f"only in {'B' if one is None else 'A'}",))
    if one["case"] != other["case"]:
        return Compared(name, 0, 0, ("A and B have different settings",))
    failed = [
        f"{side} failed: {record['failed']}" for side, record in (("A", one), ("B", other)) if "failed" in record
    ]
    if failed:
        return Compared(name, 0, 0, tuple(failed))
    both = [(one["runs"][run], other["runs"][run]) for run in one["runs"] if run in other["runs"]]
    rounds = sum(min(len(a["history"]), len(b["history"])) for a, b in both)
    models = sum(len(a["models"].keys() & b["models"].keys()) for a, b in both)
    return Compared(name, rounds, models, tuple(_differences(one["runs"], other["runs"])))


def _differences(one: Record, other: Record) -> Iterator[str]:
    for run in dict.fromkeys([*one, *other]):
        if run not in one or run not in other:
            yield f"{run}/ only in {'A' if run in one else 'B'}"
            continue
        a, b = one[run], other[run]
        for file in sorted(a["models"].keys() | b["models"].keys()):
            if a["models"].get(file) != b["models"].get(file):
                both = file in a["models"] and file in b["models"]
                yield f"{run}/{file} {'differs' if both else 'only in ' + ('A' if file in a['models'] else 'B')}"
        if len(a["history"]) != len(b["history"]):
            yield f"{run}: {len(a['history'])} and {len(b['history'])} rounds"
        for number, (row, its) in enumerate(zip(a["history"], b["history"], strict=False), 1):
            # A column that one row lacks differs from a column that is null.
            columns = [name for name in {**row, **its} if row.get(name, ...) != its.get(name, ...)]
            if columns:
                yield f"{run}, round {number}: {', '.join(columns)}"
        if a.get("distances") != b.get("distances"):
            yield f"{run}/distances.json differs"


def _described(result: Record) -> str:
    of = result["checkout"]
    versions = ", ".join(f"{name} {of[name]}" for name in ("python", "torch", "numpy"))
    return f"`{of['commit']}` {of['subject']} ({versions}; {of['machine']})"
