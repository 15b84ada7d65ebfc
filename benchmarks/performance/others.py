"""A table that compares FedGSP with the other systems of benchmarks.peers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance.rows import Row, spread


def measure(environment: Path) -> list[dict[str, Any]]:
    """One object per system and case. The environment of the other systems is created if it is missing."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "peers.jsonl")
        command = [sys.executable, "-m", "benchmarks.peers", "--env", str(environment), "--out", str(out)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # failed cases are printed to stderr
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def table(rows: Sequence[Row], found: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of FedGSP and the other systems by case. Cases without rows of FedGSP are left out."""
    lines = ["Others on the same work", "", "| case | system | seconds | peak, MiB | |", "|---|---|---|---|---|"]
    for case in dict.fromkeys(row.case for row in rows if row.case):
        ours = [row for row in rows if row.case == case]
        times = [spread(_seconds(row)) for row in ours if row.unit != "MiB"]
        peaks = [row for row in ours if row.unit == "MiB"]
        sizes, note = " + ".join(spread(row.ours) for row in peaks), " + ".join(row.what for row in peaks)
        lines.append(f"| {case} | ours | {' + '.join(times)} | {sizes} | {note} |")
        for other in found:
            if other["case"] == case:
                system = f"{other['system']} {other['version']}"
                seconds, peak = spread(other["seconds"]), spread(other["peak_mib"])
                lines.append(f"| {case} | {system} | {seconds} | {peak} | {other['note']} |")
    return "\n".join(lines)


def _seconds(row: Row) -> list[float]:
    return [value / 1000 if row.unit == "ms" else value for value in row.ours]
