"""The results of a measure: rows of a table, each with a comparison and a limit."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One quantity: all samples of FedGSP, all samples of the comparison in the same run, and the limit."""

    what: str
    unit: str
    ours: tuple[float, ...]
    limit: float
    #: Name of the comparison. With a comparison, the limit concerns the ratio of medians, FedGSP / comparison.
    beside: str = ""
    theirs: tuple[float, ...] = ()
    #: Whether the limit is a minimum, not a maximum.
    at_least: bool = False
    note: str = ""
    #: The case of benchmarks.peers in which other systems do the same work.
    case: str = ""

    @property
    def value(self) -> float:
        """The number that is compared with the limit."""
        ours = statistics.median(self.ours)
        return ours / statistics.median(self.theirs) if self.theirs else ours

    @property
    def reached(self) -> bool:
        """Whether the value is within the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def spread(samples: Sequence[float]) -> str:
    """The median, and the range of samples, as text."""
    if not samples:
        return ""
    if len(samples) == 1:
        return f"{samples[0]:.4g}"
    return f"{statistics.median(samples):.4g} ({min(samples):.4g} - {max(samples):.4g})"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | ours | beside | ratio | limit | |", "|---|---|---|---|---|---|"]
    for row in rows:
        beside = f"{row.beside}: {spread(row.theirs)} {row.unit}" if row.theirs else row.beside
        ratio = f"{row.value:.2f}" if row.theirs else ""
        limit = f"{'>=' if row.at_least else '<='} {row.limit:g}{'' if row.theirs else ' ' + row.unit}"
        what = f"{row.what} ({row.note})" if row.note else row.what
        kept = "kept" if row.reached else "**missed**"
        lines.append(f"| {what} | {spread(row.ours)} {row.unit} | {beside} | {ratio} | {limit} | {kept} |")
    return "\n".join(lines)


def main(
    measure: Callable[..., list[Row]],
    description: str,
    repeats: int = 5,
    data: str = "",
    sizes: Mapping[str, tuple[int, str]] | None = None,
) -> None:
    """The command line of one measure: a table, or with --json one row per line.

    If `data` is given, it is the help text of a flag --data, and the measure has a parameter `data`. Each entry of
    `sizes` makes another flag and parameter, with a default and a help text.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"number of samples per quantity (default {repeats})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    if data:
        parser.add_argument("--data", type=Path, metavar="FILE", help=data)
    for name, (default, what) in (sizes or {}).items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default:,})")
    flags = parser.parse_args()
    named = {name: getattr(flags, name) for name in (*(["data"] if data else []), *(sizes or {}))}
    rows = measure(flags.repeats, **named)
    text = "\n".join(json.dumps(asdict(row)) for row in rows) if flags.json else table(rows)
    sys.stdout.write(text + "\n")
