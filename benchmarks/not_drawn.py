"""Prints flags for `fedgsp-node evaluate`, which then judges a model on the FEMNIST writers that its run did not draw.

fedgsp-node evaluate RUN_DIR --task-option data=FILE.npz $(python -m benchmarks.not_drawn FILE.npz --writers 368)

`--writers` and `--seed` are the options `writers` and `seed` of the run's task, which must not have had `min_samples`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from fedgsp.errors import ConfigError, UserError
from fedgsp_node.tasks.femnist import Femnist
from top_server.grouping.request import ranges


def flags(data: Path, writers: int, seed: int) -> list[str]:
    """The flags: all writers of the file are clients, and those that are evaluated were not drawn.

    Raises UserError if the file cannot be read, or has no other writers.
    """
    drawn, everybody = Femnist(data, writers=writers, seed=seed).writers, Femnist(data, seed=seed).writers
    others = np.flatnonzero(~np.isin(everybody, drawn)).tolist()
    if not others:
        raise ConfigError(f"all {len(everybody)} writers of {data} were drawn", "give the --writers of the run")
    return ["--task-option", f"writers={len(everybody)}", "--clients", ranges(others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="FILE.npz")
    parser.add_argument("--writers", type=int, required=True, help="how many writers the run has drawn")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the task of the run")
    given = parser.parse_args()
    try:
        print(*flags(given.data, given.writers, given.seed))
    except UserError as error:
        sys.exit(f"not_drawn.py: {error}")


if __name__ == "__main__":
    main()
