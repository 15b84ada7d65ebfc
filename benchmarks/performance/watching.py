"""Measures what trackers and monitoring cost the top server: `python -m benchmarks.performance.watching`.

The same run is played without them, with `--metrics` that is asked once a second, and with `--track tensorboard`, in
turn. FedAvg of 100 clients on 4 nodes, 0.4 MB each: 100 hops a round, almost without training. Compared are processor
seconds of the process of the top server alone, from the begin of round 2 to the end of the last round, and the time of
these rounds. The whole process is compared too: it also has the imports that a tracker needs.
"""

from __future__ import annotations

import contextlib
import sys
import time
import urllib.request
from dataclasses import dataclass

import psutil

from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import FEDAVG, INTERVAL_S, Run, RunFailedError, idle_task, started
from benchmarks.performance.sizes import SMALL

CLIENTS, ROUNDS, NODES = 100, 20, 4
TIMEOUT_S = 400.0
#: Prometheus asks every 15 s, as a rule.
SCRAPE_S = 1.0
VARIANTS = {
    "without": [],
    "without, once more": [],  # how far the same runs differ
    "--metrics, asked once a second": ["--metrics", "127.0.0.1:0"],
    "--track tensorboard": ["--track", "tensorboard"],
}
#: Field of a cost -> what it is, and how much larger it may be than without.
MEASURED = {
    "rounds": (f"processor seconds of the top server, rounds 2 to {ROUNDS}", 1.03),
    "whole": ("processor seconds of the top server, from start to end", 1.03),
    "seconds": (f"time of rounds 2 to {ROUNDS}", 1.05),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of the top server in the rounds and in all, and the seconds of the rounds."""

    rounds: float
    whole: float
    seconds: float


def played(flags: list[str]) -> Cost:
    """Plays the run once."""
    run_flags = [*FEDAVG, *idle_task(CLIENTS, SMALL), "--rounds", str(ROUNDS), "--evaluate-every", "1000"]
    with started([*run_flags, *flags, "--sampling-rate", "1", "--local-nodes", str(NODES)]) as run:
        at_begin = used = 0.0
        asked_at, address = time.monotonic(), ""
        while run.process.poll() is None:
            if time.monotonic() > run.begin + TIMEOUT_S:
                raise RunFailedError(f"the run did not finish; {run.last_words()}")
            with contextlib.suppress(psutil.Error):
                times = run.process.cpu_times()
                used = times.user + times.system
            history = run.directory / "history.jsonl"
            if not at_begin and history.exists() and history.stat().st_size:
                at_begin = used
            if "--metrics" in flags and time.monotonic() > asked_at + SCRAPE_S:
                asked_at = time.monotonic()
                address = address or _address(run)
                with contextlib.suppress(OSError):  # it has ended, or does not listen yet
                    urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read()
            time.sleep(INTERVAL_S)
        if run.process.returncode:
            raise RunFailedError(f"exit code {run.process.returncode}; {run.last_words()}")
        seconds = [event["seconds"] for event in run.events() if event["event"] == "round_finished"]
        return Cost(used - at_begin, used, sum(seconds[1:]))


def _address(run: Run) -> str:
    return next((event.get("metrics", "") for event in run.events() if event["event"] == "listening"), "")


def measure(repeats: int) -> list[Row]:
    costs: dict[str, list[Cost]] = {name: [] for name in VARIANTS}
    for turn in range(repeats):
        names = list(VARIANTS) if turn % 2 == 0 else list(VARIANTS)[::-1]
        for name in names:
            costs[name].append(cost := played(VARIANTS[name]))
            sys.stderr.write(f"{name}: {cost}\n")
    rows = []
    plain = costs.pop("without")
    for name, found in costs.items():
        for what, (words, limit) in MEASURED.items():
            ours, theirs = (tuple(getattr(one, what) for one in some) for some in (found, plain))
            pairs = ", ".join(f"{mine / other:.2f}" for mine, other in zip(ours, theirs, strict=True))
            rows.append(Row(f"{words}, {name}", "s", ours, limit, "without", theirs, note=f"pairs: {pairs}"))
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "")
