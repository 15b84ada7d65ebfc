"""Pictures of who trained with whom, and of distances, as PNG images with a palette, drawn point by point."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgsp.files import file_version
from fedgsp.visible import visible
from top_server.pictures.distances import UndrawnError, by_coalition, counting, read_distances
from top_server.pictures.groups import MANY, Groups, fitting
from top_server.pictures.shown import last_partition, started_teams, teams_by_round
from top_server.report.charts import MOST_PAIRED, clients_of, together
from top_server.report.story import Story

Points = NDArray[np.uint8]
#: Colours of groups, readable on light and on dark ground, and no two neighbours alike.
_GROUPS = (
    *((66, 133, 244), (234, 134, 50), (52, 168, 83), (171, 71, 188), (0, 172, 193), (214, 73, 91)),
    *((158, 157, 36), (121, 85, 72), (76, 52, 200), (140, 225, 80), (240, 180, 228), (255, 179, 0)),
)
#: From few to many.
_FROM, _TO = (222, 235, 247), (8, 48, 107)
_STEPS = 200
_BORDER = (232, 89, 12)
#: Points along one side of a distance, so that there is room for the border of a coalition. Of many clients each has
#: fewer, so that a picture has about `_SIDE` points along one side.
_CELL, _LEAST_CELL, _SIDE = 8, 2, 2_400
#: Reading and drawing distances takes some hundred megabytes, and several browsers may ask at once.
_one_at_a_time = threading.Lock()


def groups(story: Story) -> bytes | None:
    """Clients (rows) by rounds (columns): a colour is a group; without a colour a client did not train.

    A group that lasts keeps the colour of its first member.
    """
    if (found := _groups(story)) is None:
        return None
    image = found.image
    points = np.where(np.isnan(image), 0, np.nan_to_num(image) % len(_GROUPS) + 1).astype(np.uint8)
    return png(points, [(0, 0, 0), *_GROUPS])


def pairs(story: Story) -> bytes | None:
    """Clients by clients: in how many rounds two trained in one group."""
    found = together(_teams(story))
    if found is None:
        return None
    _, counts = found
    scaled = counts / max(1, int(counts.max()))
    return png(np.where(counts > 0, 1 + np.rint(scaled * (_STEPS - 1)), 0).astype(np.uint8), [(0, 0, 0), *_ramp()])


def distances(story: Story) -> bytes | None:
    """Clients by clients, coalition by coalition, each with a border: how far apart their data are."""
    try:
        read = _measured(story)
    except UndrawnError:
        return None
    if read is None:
        return None
    clients, matrix = read
    ordered, sizes = by_coalition(clients, last_partition(story.rows))
    place = {client: index for index, client in enumerate(clients)}
    rows = [place[client] for client in ordered]
    cell = max(_LEAST_CELL, min(_CELL, _SIDE // max(1, len(rows))))
    with _one_at_a_time:
        points = matrix[np.ix_(rows, rows)].repeat(cell, axis=0).repeat(cell, axis=1)
        begin = 0
        for size in sizes:
            end = begin + size * cell
            for line in (begin, end - 1):
                points[line, begin:end] = points[begin:end, line] = _STEPS + 1
            begin = end
        return png(points, [(0, 0, 0), *_ramp(), _BORDER])


#: Name of a picture -> what draws it; None if the run has nothing to draw.
PICTURES: Mapping[str, Callable[[Story], bytes | None]] = {"groups": groups, "pairs": pairs, "distances": distances}


def described(story: Story) -> dict[str, Any]:
    """What the pictures show, for their captions, and for those who cannot see them."""
    teams, found = _teams(story), _groups(story)
    partition = last_partition(story.rows)
    undrawn, measured = "", None
    try:
        measured = _measured(story)
    except UndrawnError as error:
        undrawn = visible(error.what)
    return {
        "first": found.rounds[0] if found else 0,
        "last": found.rounds[-1] if found else 0,
        "all_rounds": found.all_rounds if found else 0,
        "clients": found.clients if found else [],
        "all_clients": found.all_clients if found else 0,
        "pairs": clients_of(teams)[:MOST_PAIRED],
        "paired": any(len(group) > 1 for groups in teams.values() for group in groups),
        "lasting": bool(teams_by_round(story.rows)),
        "distances": by_coalition(measured[0], partition)[0] if measured else [],
        "undrawn": undrawn,
        "coalitions": [sorted(group) for group in partition] if measured else [],
    }


def _teams(story: Story) -> dict[int, list[list[int]]]:
    return teams_by_round(story.rows) or started_teams(story.events)


def _groups(story: Story) -> Groups | None:
    teams = _teams(story)
    rounds = range(min(teams, default=0), max(teams, default=0) + 1)
    return fitting(teams, rounds, lasting=bool(teams_by_round(story.rows)), room=MANY)


def _measured(story: Story) -> tuple[list[int], Points] | None:
    """The clients and the colours of their distances, shape (N, N); None without distances. Raises DataError.

    That is UndrawnError if they are too many to be drawn.
    """
    path = story.directory.distances
    with _one_at_a_time:
        found = _colours(path, file_version(path))
    if found == "too many":
        raise UndrawnError(path)
    return found


@lru_cache(maxsize=4)
def _colours(path: Path, version: tuple[int, ...]) -> tuple[list[int], Points] | Literal["too many"] | None:
    """As `_measured`, of a version of the file: each takes seconds to read, and is asked for again and again.

    Those that are not drawn take as long, and a cache keeps no exception.
    """
    try:
        read = read_distances(path)
    except UndrawnError:
        return "too many"
    if read is None:
        return None
    clients, matrix = read
    return clients, (1 + np.rint(counting(matrix) * (_STEPS - 1))).astype(np.uint8)


def _ramp() -> list[tuple[int, int, int]]:
    steps = np.linspace(_FROM, _TO, _STEPS)
    return [(int(red), int(green), int(blue)) for red, green, blue in steps]


def png(points: Points, palette: list[tuple[int, int, int]]) -> bytes:
    """A PNG image of points (rows, columns) that are places in a palette; place 0 is transparent."""
    height, width = points.shape
    lines = np.hstack([np.zeros((height, 1), np.uint8), points])  # each line begins with its filter: none
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(value for colour in palette for value in colour)),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
