"""Prints FedCollab's coalitions for several values of C, from recorded distances: coalitions_by_c.py FILE ...

For each file and C, a line has the objective summed over clients, the number of coalitions, and the coalitions.
Nothing is trained, so C can be chosen by the structure of the coalitions before the first round.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from top_server.grouping.coalitions import objective, solve
from top_server.grouping.request import ranges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="file distances.json of a run")
    parser.add_argument("--c", default="0.5,1,2,4,6,8,10,12,15,20", help="values of C, for example 8,10")
    parser.add_argument("--restarts", type=int, default=100)
    arguments = parser.parse_args()
    for file in arguments.files:
        document = json.loads(file.read_text(encoding="utf-8"))
        distances = np.maximum(np.array(document["distances"]), 0)
        sizes = np.array(document["sizes"], np.float64)
        print(f"\n{file}\n\n| C | objective | coalitions | |\n|---|---|---|---|")
        for weight in map(float, arguments.c.split(",")):
            groups = solve(distances, sizes, weight, arguments.restarts, np.random.default_rng(0)).groups
            value = objective(distances, sizes, weight, groups)
            named = [f"{{{ranges(document['clients'][row] for row in group)}}}" for group in groups]
            print(f"| {weight:g} | {value:.4f} | {len(groups)} | {' '.join(named)} |")


if __name__ == "__main__":
    main()
