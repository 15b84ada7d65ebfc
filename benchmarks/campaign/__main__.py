"""Plays campaigns between sites whose links and machines fail all the time: needs Linux and root.

    python -m benchmarks.campaign --runs 10 --first-seed 0 [--out DIR]

A campaign has 20 rounds with 8 sites in network namespaces. One site is 20 times slower, two have links of 100 kB/s,
and a middlebox forgets idle connections. All connections use TLS. In seventeen of the rounds something fails:

- Links are cut for up to a minute, and once for six minutes (scaled: a second of the campaign stands for 20).
- Nodes, a group manager and the top server are killed and started again, or are frozen, some several times in a row.
- The certificate of a node expires. The disks of a node and of the top server are full for a while.
- A node gets another address, so all its connections are lost, and other nodes do not reach it any more.

In half of the campaigns of FedGSP, groups are dealt by time (`--balance time`). A campaign is judged as a run of
`benchmarks.chaos`: it must finish all rounds with the bits of an independent oracle, and name every absence.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.campaign.plan import draw
from benchmarks.chaos import links
from benchmarks.chaos.campaign import campaign, report
from benchmarks.chaos.play import Record
from fedgsp.processes import lifecycle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="number of campaigns at the same time")
    parser.add_argument("--out", type=Path, help="folder for runs.jsonl and the files of failed campaigns")
    parser.add_argument("--keep", action="store_true", help="also keep the files of good campaigns")
    parser.add_argument("--list", action="store_true", help="only print the plans")
    flags = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    plans = [draw(seed) for seed in range(flags.first_seed, flags.first_seed + flags.runs)]
    if flags.list:
        for plan in plans:
            console.print(f"{plan.seed}: {plan.scheme}; {'; '.join(map(str, plan.faults))}", highlight=False)
        return 0
    if reason := links.why_not():
        console.print(f"no campaign: {reason}", style="red")
        return 1
    out = (flags.out or Path(tempfile.mkdtemp(prefix="campaign-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    links.sweep()
    records: list[Record] = []
    if code := lifecycle.run(campaign(plans, out, flags.at_once, flags.keep, console, records)):
        return code
    console.print(report(records))
    console.print(f"records: {out / 'runs.jsonl'}", markup=False)
    return int(any(record.wrong for record in records))


if __name__ == "__main__":
    sys.exit(main())
