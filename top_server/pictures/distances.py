"""Draws the distances between the clients' data, and outlines the coalitions."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError
from fedgsp.files import parse_json, read_file
from fedgsp.visible import visible
from fedgsp.words import with_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

#: The most clients whose distances are drawn, and the most bytes of their file, which has errors beside distances:
#: a picture has no room for more, and reading takes several times the memory of the file.
MOST_CLIENTS, MOST_BYTES = 1_500, 1 << 27
#: Letters of a text in a picture: long ones take megabytes to draw.
_MOST_TEXT = 200
#: Letters of the name of a client: with longer names beside them, pictures would be strips.
_MOST_NAME = 16
#: Names of clients that are readable along one side of a picture.
_MOST_NAMES = 30
_FEW_NAMES = 12
#: Characters that fit side by side in the names along one side.
_MOST_LETTERS = 45
#: Up to this number of clients outlines are broad.
_FEW_CLIENTS = 60


class UndrawnError(DataError):
    """The distances are too many to be drawn."""

    def __init__(self, path: Path) -> None:
        limits = f"more than {MOST_CLIENTS:,} clients or {MOST_BYTES:,} bytes"
        super().__init__(f"the distances in {path} are not drawn: it has {limits}", "read it with your own program")


def literal(text: str, most: int = _MOST_TEXT) -> str:
    """The begin of a text of others as matplotlib draws it letter by letter: a dollar sign would begin a formula."""
    shown = visible(text[: most + 1])
    return (shown if len(shown) <= most else f"{shown[:most]}...").replace("$", r"\$")


def short_names(called: Mapping[int, str]) -> dict[int, str]:
    """The begins of the names of clients, as pictures show them beside the numbers."""
    return {client: literal(name, _MOST_NAME) for client, name in called.items()}


def read_distances(path: Path) -> tuple[list[int], NDArray[np.float64]] | None:
    """The clients and their distances (N, N) from the record of a run; None without such a file.

    Raises DataError if the file is damaged, and UndrawnError if it is too large.
    """
    try:
        document = parse_json(read_file(path, MOST_BYTES))
        clients = [int(client) for client in document["clients"]]
        if len(clients) > MOST_CLIENTS:
            raise UndrawnError(path)
        matrix = np.array(document["distances"], np.float64)
        if matrix.shape != (len(clients), len(clients)):
            raise ValueError(f"distances of shape {matrix.shape} for {len(clients)} clients")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise UndrawnError(path) from None
        raise DataError(f"{path} holds no distances ({error})", "restore the file, or remove it") from None
    return clients, matrix


def by_coalition(clients: Sequence[int], partition: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The clients, coalition by coalition, and the size of each coalition; clients in none come last.

    Coalitions are in the order of their smallest members; members that are none of `clients` are left out.
    """
    known = set(clients)
    coalitions = sorted(sorted(known.intersection(group)) for group in partition if known.intersection(group))
    ordered = [client for group in coalitions for client in group]
    return ordered + sorted(known.difference(ordered)), [len(group) for group in coalitions]


def counting(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distances as groupings count them: below 0 as 0, and unknown as 1 (Section 5.2)."""
    return np.clip(np.nan_to_num(matrix, nan=1.0), 0, 1)


def draw_distances(
    axes: Axes,
    clients: Sequence[int],
    matrix: NDArray[np.float64],
    partition: Sequence[Sequence[int]],
    called: Mapping[int, str] = MappingProxyType({}),
) -> AxesImage:
    """Draws the matrix (N, N), rows and columns by coalition, each outlined, with the values that `counting` gives.

    `called` are what people call clients.
    """
    ordered, sizes = by_coalition(clients, partition)
    row = {client: index for index, client in enumerate(clients)}
    rows = [row[client] for client in ordered]
    image = axes.imshow(counting(matrix[np.ix_(rows, rows)]), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    width = 2.0 if len(ordered) <= _FEW_CLIENTS else 1.0
    begin = -0.5
    for end in begin + np.cumsum(sizes):
        corners = ([begin, end, end, begin, begin], [begin, begin, end, end, begin])
        axes.plot(*corners, color="#e8590c", linewidth=width, solid_joinstyle="miter", clip_on=False, zorder=3)
        begin = end
    name_clients(axes, "x", ordered, called)
    name_clients(axes, "y", ordered, called)
    axes.set(xlabel="client", ylabel="client")
    return image


def name_clients(
    axes: Axes, side: Literal["x", "y"], clients: Sequence[int], called: Mapping[int, str] = MappingProxyType({})
) -> None:
    """Labels the positions 0, 1, ... along one side with numbers and names of clients, or some of them if many."""
    step = -(-len(clients) // _MOST_NAMES)
    short = short_names(called)
    names = [with_name(client, short) for client in clients[::step]]
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_ticks(range(0, len(clients), step), names, fontsize=8.0 if len(names) <= _FEW_NAMES else 6.5)
    if side == "x" and len("".join(names)) > _MOST_LETTERS:
        axes.tick_params(axis="x", labelrotation=90)
