"""How alike two runs group their clients, round by round: same_partitions.py ONE TWO [ONE TWO ...]

For runs that differ in how updates are compared (whole or as sketches): as long as all partitions before were equal,
both saw the same updates, and a difference is the view's. Prints, per pair, the rounds with equal partitions, the
first that differs, and the weights and views moved by both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = parser.parse_args().runs
    print("| one | two | rounds | equal partitions | first difference | MB of one | MB of two |\n|" + "---|" * 7)
    for one, two in zip(runs[::2], runs[1::2], strict=True):
        pairs = list(zip(rows(one), rows(two), strict=False))
        equal = [canonical(a) == canonical(b) for a, b in pairs]
        first = next((a["round"] for (a, _), same in zip(pairs, equal, strict=True) if not same), "none")
        moved = [f"{sum(r['bytes_direct'] + r['bytes_relayed'] for r in rows(run)) / 1e6:,.1f}" for run in (one, two)]
        print(f"| {one.name} | {two.name} | {len(pairs)} | {sum(equal)} | {first} | {moved[0]} | {moved[1]} |")


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def canonical(row: dict[str, Any]) -> list[list[int]]:
    return sorted(sorted(group) for group in row["partition"])


if __name__ == "__main__":
    main()
