"""Plays many runs, several at the same time: shows progress, records each run, and prints a table."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.chaos.plan import Plan
from benchmarks.chaos.play import DETECTION_S, Hit, Record, play


async def campaign(
    plans: Sequence[Plan], out: Path, at_once: int, keep: bool, console: Console, records: list[Record]
) -> None:
    """Plays all plans, and adds to `records`. `out` gets runs.jsonl, with a line per run, and files of failed runs."""
    waiting = list(reversed(plans))
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress, (out / "runs.jsonl").open("a") as lines:
        bar = progress.add_task("", total=len(plans))

        async def work(tag: str) -> None:
            while waiting:
                plan = waiting.pop()
                progress.update(bar, description=f"seed {plan.seed}: {plan.faults[0]}")
                folder = out / f"seed-{plan.seed:04d}"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                record = await play(plan, folder, tag)
                records.append(record)
                lines.write(json.dumps(as_line(record)) + "\n")
                lines.flush()
                if record.wrong:
                    told = "; ".join(record.wrong)
                    progress.console.print(f"seed {plan.seed} failed ({folder}): {told}", markup=False, style="red")
                elif not console.is_terminal:
                    console.print(f"seed {plan.seed} good, {record.seconds:.1f} s: {plan.faults[0]}", highlight=False)
                if not record.wrong and not keep:
                    shutil.rmtree(folder)
                progress.advance(bar)

        async with asyncio.TaskGroup() as group:
            for number in range(at_once):
                group.create_task(work(chr(ord("a") + number)))


def as_line(record: Record) -> dict[str, Any]:
    """A run as a JSON object."""
    line = dataclasses.asdict(record)
    return {"seed": record.plan.seed, "ok": not record.wrong, **line}


def report(records: Sequence[Record]) -> Table:
    """A table of all runs: how many finished with the oracle's bits, and how soon faults were noticed and repaired."""
    by_kind: dict[tuple[str, str], list[tuple[Record, Hit]]] = defaultdict(list)
    for record in records:
        for hit in record.hits:
            by_kind[hit.kind, hit.victim].append((record, hit))
    table = Table(title="Seconds that faults lasted, until they were noticed, and until work went on: median, worst")
    for column in ("fault", "runs", "good", "skipped", "hits", "noticed", f"over {DETECTION_S:g} s"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    table.add_column("lasting", justify="right")
    table.add_column("detected", justify="right")
    table.add_column("recovered", justify="right")
    for (kind, victim), found in sorted(by_kind.items()):
        hits = [hit for _, hit in found]
        detected = [hit.detected for hit in hits if hit.detected is not None]
        recovered = [hit.recovered for hit in hits if hit.recovered is not None]
        lasting = [hit.lasting for hit in hits]
        runs = {record.plan.seed: record for record, _ in found}.values()
        numbers = (
            *(len(runs), sum(not record.wrong for record in runs), sum(record.skipped for record in runs)),
            *(len(hits), len(detected), sum(hit.late for hit in hits)),
        )
        table.add_row(f"{kind} {victim}", *map(str, numbers), _spread(lasting), _spread(detected), _spread(recovered))
    good = sum(not record.wrong for record in records)
    seconds = [record.seconds for record in records]
    missed = sum(sum(fault.times for fault in record.plan.faults) - len(record.hits) for record in records)
    table.caption = f"{good} of {len(records)} runs good; {statistics.median(seconds):.1f} s each in the median"
    table.caption += f"; {missed} faults came after the end of their runs" if missed else ""
    return table


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} {max(seconds):5.2f}" if seconds else ""
