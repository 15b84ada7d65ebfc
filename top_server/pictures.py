"""Draws a run: accuracy and loss, the clients' accuracies, and who trained with whom. Needs the `plots` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError, DataError
from top_server.history import read_lines

#: Colours that can be told apart; groups beyond share them.
_COLOURS = 20


def draw(run_dir: Path, out: Path) -> None:
    """Writes one picture of what `run_dir` holds; raises UserError if there is nothing to draw, or no matplotlib."""
    rows = read_lines(run_dir / "history.jsonl")
    if any(not {"round", "accuracy", "loss"} <= row.keys() for row in rows):
        raise DataError(f"{run_dir / 'history.jsonl'} is not the history of a run", "give the directory of a run")
    if not rows:
        raise DataError(f"{run_dir} holds no finished round", "draw it when a round has ended")
    try:
        import matplotlib as mpl
        from matplotlib import pyplot as plt
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigError("drawing needs matplotlib", "install the extra: pip install 'fedgsp[plots]'") from None
    mpl.use("Agg")
    grouped = any("partition" in row for row in rows)
    figure, axes = plt.subplots(1, 3 if grouped else 2, figsize=(15 if grouped else 10, 4.2), layout="constrained")
    evaluated = [row for row in rows if row["accuracy"] is not None]
    rounds = [row["round"] for row in evaluated]
    for number, curve in enumerate(_per_client(evaluated).values()):
        axes[0].plot(*curve, color="0.8", linewidth=0.8, zorder=1, label="_" if number else "each client")
    axes[0].plot(rounds, [100 * row["accuracy"] for row in evaluated], marker=".", label="over all samples")
    axes[0].set(xlabel="round", ylabel="accuracy on the clients' test parts, %")
    axes[0].legend()
    axes[1].plot(rounds, [row["loss"] for row in evaluated], marker=".")
    axes[1].set(xlabel="round", ylabel="loss")
    if grouped:
        first, last = rows[0]["round"], rows[-1]["round"]
        clients, image = partition_image([row.get("partition") for row in rows])
        names = dict(enumerate(map(str, clients)))
        extent = (first - 0.5, last + 0.5, image.shape[0] - 0.5, -0.5)
        axes[2].imshow(
            image % _COLOURS,
            cmap="tab20",
            aspect="auto",
            extent=extent,
            interpolation="nearest",
            vmin=0,
            vmax=_COLOURS - 1,
        )
        axes[2].yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[2].yaxis.set_major_formatter(lambda row, _: names.get(round(row), ""))
        axes[2].set(xlabel="round", ylabel="client", title="a colour is a group, that of its first member")
    for one in axes:
        one.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(run_dir.resolve().name)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {out} cannot be written: {error}", "give a file name such as run.png") from None
    finally:
        plt.close(figure)


def partition_image(partitions: list[list[list[int]] | None]) -> tuple[list[int], NDArray[np.float64]]:
    """The clients, ascending; shape (clients, rounds): the smallest member of each one's group, NaN if in none."""
    clients = sorted({client for found in partitions for group in found or [] for client in group})
    place = {client: row for row, client in enumerate(clients)}
    image = np.full((max(1, len(clients)), len(partitions)), np.nan)
    for column, found in enumerate(partitions):
        for group in found or []:
            image[[place[client] for client in group], column] = min(group)
    return clients, image


def _per_client(rows: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for client, accuracy in (row.get("accuracy_per_client") or {}).items():
            rounds, accuracies = curves.setdefault(client, ([], []))
            rounds.append(row["round"])
            accuracies.append(100 * accuracy)
    return curves
