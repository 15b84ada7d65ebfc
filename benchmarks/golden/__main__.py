"""Proves that a change of the code changed no result: plays many small runs, and compares their bits.

    python -m benchmarks.golden --checkout DIR --out FILE.json          # plays one checkout
    python -m benchmarks.golden --compare A.json B.json                 # compares two results
    python -m benchmarks.golden --base DIR --checkout DIR --out FILE    # plays two checkouts, and compares

Each case is a run of real processes on this machine, with two local nodes. The cases are every scheme, every way of
models between processes, robust means, every local training, a task that raises an exception, and a top server that is
killed and resumed. The program compares the tensors of all models of every round, and the columns of the history that
depend on neither time nor processes. Results are comparable between checkouts on one machine with one interpreter. The
exit code is 1 if a run failed or anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.golden.cases import Case, cases, chosen
from benchmarks.golden.checkout import Checkout, WrongCheckoutError
from benchmarks.golden.compare import compare, markdown
from benchmarks.golden.play import play_all

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="checkout to play; this one by default")
    parser.add_argument("--base", type=Path, help="checkout to compare with; its result goes to FILE.base.json")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="Python interpreter; this one by default"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the result, as JSON")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="number of runs at the same time")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="compare two results, play nothing")
    parser.add_argument("--list", action="store_true", help="only print the names of the cases")
    asked = parser.parse_args()
    if asked.compare:
        one, other = (json.loads(path.read_text(encoding="utf-8")) for path in asked.compare)
        return report(one, other)
    if asked.jobs < 1:
        parser.error("--jobs must be at least 1")
    if asked.out is None and not asked.list:
        parser.error("give --out FILE, or --compare A B")
    roots = [asked.base, asked.checkout] if asked.base else [asked.checkout]
    try:
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            checkouts = [Checkout.probe(root, asked.python, Path(folder)) for root in roots]
        selected = [chosen(cases(checkout.schemes), asked.only) for checkout in checkouts]
        if not all(selected):
            parser.error(f"no case has a name with {' or '.join(asked.only)}")
        if asked.list:
            print("\n".join(selected[-1]))
            return 0
        results = [played(checkout, each, asked.jobs) for checkout, each in zip(checkouts, selected, strict=True)]
    except WrongCheckoutError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    paths = [asked.out.with_suffix(".base.json"), asked.out] if asked.base else [asked.out]
    for path, result in zip(paths, results, strict=True):
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if asked.base:
        return report(*results)
    return int(any("failed" in record for record in results[0]["cases"].values()))


def played(checkout: Checkout, selected: dict[str, Case], jobs: int) -> dict[str, Any]:
    """The result of a checkout, as it is written to a file."""

    def on_end(name: str, record: dict[str, Any]) -> None:
        print(f"{record['seconds']:6.1f} s  {name}: {record.get('failed', 'played')}", flush=True)

    print(f"{checkout.root}: {len(selected)} cases")
    described = checkout.described()
    return {"checkout": described, "cases": play_all(checkout, selected, jobs, on_end)}


def report(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Prints the table of two results; 1 if anything differs."""
    compared = compare(one, other)
    print(markdown(one, other, compared))
    return int(not compared or any(row.differences for row in compared))


if __name__ == "__main__":
    sys.exit(main())
