"""Measures the cost of rounds, transfers, training and grouping: `make bench`, or `python -m benchmarks.performance`.

Each measure runs in a new process. It can also run alone, for example `python -m benchmarks.performance.hop`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.performance import others
from benchmarks.performance.rows import Row, table

MEASURES = tuple(
    sorted(path.stem for path in Path(__file__).parent.glob("*.py") if "\ndef measure(" in path.read_text())
)
#: Measures that take minutes, or need a GPU or network namespaces. They run only if they are named.
LONG = ("churn", "gpu", "gpu_rounds", "huge_model", "lost_peers", "wan_tcp", "web")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"{', '.join(MEASURES)} (default: all but {', '.join(LONG)})"
    )
    parser.add_argument("--repeats", type=int, help="number of samples per quantity; each measure has a default")
    parser.add_argument("--out", type=Path, help="also write the rows to this file, one JSON object per line")
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="also measure other systems, in an environment in this folder"
    )
    flags = parser.parse_args()
    if unknown := [name for name in flags.measures if name not in MEASURES]:
        parser.error(f"no measure {unknown[0]!r}; there are {', '.join(MEASURES)}")
    rows: list[Row] = []
    failed = []
    for name in flags.measures or [name for name in MEASURES if name not in LONG]:
        sys.stderr.write(f"measuring {name} ...\n")
        command = [sys.executable, "-m", f"benchmarks.performance.{name}", "--json"]
        if flags.repeats:
            command += ["--repeats", str(flags.repeats)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode:
            failed.append(name)
            continue
        for line in ended.stdout.splitlines():
            found = json.loads(line)
            rows.append(Row(**{**found, "ours": tuple(found["ours"]), "theirs": tuple(found["theirs"])}))
    sys.stdout.write(table(rows) + "\n")
    if flags.peers:
        sys.stdout.write("\n" + others.table(rows, others.measure(flags.peers)) + "\n")
    if flags.out:
        flags.out.write_text("".join(json.dumps(vars(row)) + "\n" for row in rows))
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
