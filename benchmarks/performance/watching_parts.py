"""Measures single answers and rounds of watching: `python -m benchmarks.performance.watching_parts`.

Processor time of the process that answers /metrics, for each question of another process that asks five times a
second; and that of a tracker for a round of 100 hops: reading it from the record, and writing it for TensorBoard.
Whole runs are compared by `watching`. On a busy machine equal runs differ there as much as the variants do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.performance.rows import Row, main
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from top_server.metrics import door
from top_server.metrics.state import State
from top_server.record.directory import RunDirectory
from top_server.tracking import chosen
from top_server.tracking.following import exported

ASKED, PAUSE_S = 50, 0.2
ROUNDS, CLIENTS = 50, 100
MOST_MS = 5.0
TIME = "2026-01-01T00:00:00.000Z"
_ASK = """
import sys, time, urllib.request
for _ in range(int(sys.argv[2])):
    urllib.request.urlopen(sys.argv[1]).read()
    time.sleep(float(sys.argv[3]))
"""


async def answer() -> float:
    """Milliseconds of processor time for one answer."""
    async with door.opened("127.0.0.1:0", None, door.pages_of(State(), 60.0)) as address:
        words = ["-c", _ASK, f"http://{address}/metrics", str(ASKED), str(PAUSE_S)]
        begin = time.process_time()
        asking = await asyncio.create_subprocess_exec(sys.executable, *words)
        await asking.wait()
        return (time.process_time() - begin) / ASKED * 1000


def tracked(folder: Path) -> float:
    """Milliseconds of processor time that the tracker needs for one round."""
    directory = RunDirectory(folder / "run")
    directory.path.mkdir()
    directory.config.write_text(dump(RunConfig()))
    events: list[dict[str, Any]] = [{"event": "run_started", "run": "abcd", "round": 0}]
    for number in range(1, ROUNDS + 1):
        hop = {"event": "hop_finished", "round": number, "group": 0, "program": "parallel", "position": 0}
        hop |= {"members": CLIENTS, "loss": 0.5, "seconds": 0.25, "samples": 10, "bytes": 400_000, "node": "node-0"}
        hop |= {"model": "b687fefa/1/0/parallel/0.0", "via": "manager", "travelled": 0, "coding": "memory"}
        events += [{**hop, "client": client} for client in range(CLIENTS)]
        events.append({"event": "round_finished", "round": number, "accuracy": 0.5, "loss": 0.5, "seconds": 1.0})
    directory.events.write_text("".join(json.dumps({"time": TIME, **event}) + "\n" for event in events))
    ((tracker, options),) = chosen("--to", ["tensorboard"], {})
    begin = time.process_time()
    exported(tracker, options, directory.path)
    return (time.process_time() - begin) / ROUNDS * 1000


def measure(repeats: int) -> list[Row]:
    answers = tuple(asyncio.run(answer()) for _ in range(repeats))
    rounds = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(tracked(Path(folder)))
    return [
        Row("processor time of one answer of /metrics", "ms", answers, MOST_MS),
        Row(f"processor time of --track tensorboard for a round of {CLIENTS} hops", "ms", tuple(rounds), MOST_MS),
    ]


if __name__ == "__main__":
    main(measure, __doc__ or "")
