"""Draws the distances between clients that several runs estimated: plot_coalitions.py DIR... --out FILE

DIR is the directory of a run, or LABEL=DIR; without a label, the name of the directory is the title. The coalitions of
a run's last round have an outline. The script also prints the mean distances within coalitions and between them. It
needs the `plots` extra.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

from top_server.pictures.distances import draw_distances, read_distances
from top_server.pictures.shown import last_partition
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

mpl.use("Agg")
import matplotlib.pyplot as plt

MOST_COLUMNS = 4
SIDE_INCHES = 3.6


def told(clients: list[int], matrix: np.ndarray, partition: list[list[int]]) -> str:
    """A line of text: sizes of the coalitions, mean distance within and between them. Negative values count as 0."""
    coalition = {client: number for number, group in enumerate(partition) for client in group}
    numbers = np.array([coalition.get(client, -1 - client) for client in clients])
    pairs, together = ~np.eye(len(clients), dtype=bool), numbers[:, None] == numbers
    clipped = np.clip(matrix, 0, 1)
    within, across = clipped[pairs & together], clipped[pairs & ~together]
    sizes = " ".join(str(len(group)) for group in sorted(partition, key=len))
    means = (f"{where} {part.mean():.3f}" for where, part in (("within", within), ("across", across)) if len(part))
    return f"{len(partition)} coalitions ({sizes}), mean distance {', '.join(means)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="DIR", help="directory of a run, or LABEL=DIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=MOST_COLUMNS, help="most runs in a row of the picture")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    columns = min(arguments.columns, len(arguments.runs))
    lines = -(-len(arguments.runs) // columns)
    size = (SIDE_INCHES * columns + 0.7, (SIDE_INCHES + 0.2) * lines + (0.4 if arguments.title else 0))
    figure, grid = plt.subplots(lines, columns, figsize=size, layout="compressed", squeeze=False)
    for axes in grid.flat[len(arguments.runs) :]:
        axes.set_visible(False)
    for item, axes in zip(arguments.runs, grid.flat, strict=False):
        label, _, path = item.rpartition("=")
        directory = RunDirectory(Path(path))
        found = read_distances(directory.distances)
        if found is None:
            parser.error(f"{path} measured no distances")
        partition = last_partition(read_lines(directory.history))
        image = draw_distances(axes, *found, partition)
        axes.set_title(label or directory.path.resolve().name)
        print(f"{label or path}: {told(*found, partition)}")
    figure.colorbar(image, ax=grid, label="distance")
    figure.suptitle(arguments.title)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
