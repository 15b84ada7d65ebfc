"""Injects faults into runs of real processes, and compares the results with an oracle: `make chaos`.

    python -m benchmarks.chaos --runs 100 --first-seed 0 [--kinds kill,stop,cut] [--out DIR]

Each run is drawn from its seed: 8 to 12 clients on 3 or 4 nodes, and one or two faults. A fault of the kind `kill`
kills a node, a group manager, the top server, or all nodes and the top server, and starts them again. `stop` pauses a
process and continues it; half of the stops are short, and come several times. `cut` interrupts a network link for some
seconds; in some of these runs, all links are slow and lose packets. `cut` needs root, because it uses network
namespaces.

The optimiser is plain SGD, or AdamW whose state is fresh, relayed or kept; in some runs, a part of the model is frozen
or in bfloat16. The oracle is an independent implementation, which gets the list of clients that took part, and with
kept state also the trainings in the receipts of the nodes. A run is good if it finishes, if its final model and the
models that clients keep have the bits of the oracle, if no client was left out without need, if every absence of a
client is named at the end, and if no process, port or unfinished file remains. The exit code is 1 if a run is not
good, or if a fault was noticed after more than 5 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from benchmarks.chaos import links
from benchmarks.chaos.campaign import campaign, report
from benchmarks.chaos.plan import KINDS, draw
from benchmarks.chaos.play import Record
from fedgsp.processes import lifecycle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", help="run only these seeds, for example 3,17")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"kinds of faults: {', '.join(KINDS)} (default: all)")
    parser.add_argument("--at-once", type=int, default=1, help="number of runs at the same time")
    parser.add_argument("--out", type=Path, help="folder for runs.jsonl and the files of failed runs")
    parser.add_argument("--keep", action="store_true", help="also keep the files of good runs")
    parser.add_argument("--list", action="store_true", help="only print the plans")
    flags = parser.parse_args()
    kinds = [kind for kind in KINDS if kind in flags.kinds.split(",")]
    if unknown := set(flags.kinds.split(",")) - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    if "cut" in kinds and (reason := links.why_not()):
        kinds.remove("cut")
        console.print(f"no cut links: {reason}", style="yellow")
        if not kinds:
            return 1
    seeds: Iterable[int] = range(flags.first_seed, flags.first_seed + flags.runs)
    plans = [draw(seed, kinds) for seed in (map(int, flags.seeds.split(",")) if flags.seeds else seeds)]
    if flags.list:
        for plan in plans:
            console.print(
                f"{plan.seed}: {plan.scheme}, {plan.optimizer}, {plan.variant}, {'; '.join(map(str, plan.faults))}",
                highlight=False,
            )
        return 0
    out = flags.out or Path(tempfile.mkdtemp(prefix="chaos-"))
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    links.sweep()
    records: list[Record] = []
    # On a signal, the campaign also ends its processes and removes its namespaces.
    if code := lifecycle.run(campaign(plans, out, flags.at_once, flags.keep, console, records)):
        return code
    console.print(report(records))
    console.print(f"records: {out / 'runs.jsonl'}", markup=False)
    return int(any(record.wrong or any(hit.late for hit in record.hits) for record in records))


if __name__ == "__main__":
    sys.exit(main())
