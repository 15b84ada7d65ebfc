"""Writes a FEMNIST file with fewer writers, and counts the samples of writers for other scripts.

`python -m benchmarks.femnist_writers DATA/femnist.npz OUT.npz [--writers 368] [--seed 0]` keeps the first writers of
numpy's RandomState(seed).permutation. Their samples keep the order of the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = 62
#: Number of writers in the FedGSP paper.
WRITERS = 368


def class_counts(data: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For n writers of a FEMNIST file: class counts of the training part, (n, 62), test samples, (n,)."""
    with np.load(data) as arrays:
        writers, labels, tested = arrays["writer_train"], arrays["y_train"], arrays["writer_test"]
    count = int(max(writers.max(), tested.max())) + 1
    trained = np.zeros((count, CLASSES), np.int64)
    np.add.at(trained, (writers, labels), 1)
    return trained, np.bincount(tested, minlength=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with np.load(flags.data) as arrays:
        data = dict(arrays)
    count = len(data["writer_names"])
    kept = np.sort(np.random.RandomState(flags.seed).permutation(count)[: flags.writers])
    number = np.full(count, -1, np.int32)
    number[kept] = np.arange(len(kept))
    found = {"writer_names": data["writer_names"][kept], "class_names": data["class_names"], "meta": data["meta"]}
    for part in ("train", "test"):
        writers = number[data[f"writer_{part}"]]
        own = writers >= 0
        found |= {f"{name}_{part}": data[f"{name}_{part}"][own] for name in ("x", "y")}
        found[f"writer_{part}"] = writers[own]
    np.savez(flags.out, **found)
    samples = len(found["y_train"]) / len(kept)
    print(f"{flags.out}: {len(kept)} writers with {samples:.1f} training samples on average")


if __name__ == "__main__":
    main()
