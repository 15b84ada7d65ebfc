"""Four types of clients that differ in labels, in features or in the concept, half of the clients large (FedCollab).

Client k of N is of type 4k // N, counted from 0; clients N / 2 and on have a small part of their training samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.task import Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Indices: TypeAlias = NDArray[np.int64]

TYPES = 4
#: Counter-clockwise, by type. The paper's; the release exchanges the signs of the first two and of the last two.
DEGREES = (25, -25, 155, -155)
#: Of each label, the share that all clients of a type hold together; what is missing to 1 stays unused.
LABEL_SHARES = np.array(
    [
        [0.25, 0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 0],
        [0, 0.5, 0.5, 0.5, 0.25, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0.25, 0.5, 0.5, 0.5, 0],
        [0, 0, 0, 0, 0, 0, 0.5, 0.5, 0.5, 0.25],
    ]
)


@dataclass(frozen=True, slots=True)
class Shift:
    """What types of clients differ in, with the paper's numbers where none are given."""

    test_share: float
    decay: float
    #: Number of classes -> share of each label that a type holds, shape (4, classes).
    shares: Callable[[int], NDArray[np.float64]]
    #: Type, its samples as the model takes them, number of classes -> what the type has in their place.
    change: Callable[[int, Split, int], Split]


def client_type(client: int, clients: int) -> int:
    """The type of one client, 0 .. 3."""
    return client * TYPES // clients


def shifted_rows(
    shift: Shift,
    labels: NDArray[Any],
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    test_share: float | None = None,
    decay: float | None = None,
) -> list[tuple[Indices, Indices]]:
    """Rows that each client trains and tests on, all disjoint; small clients train on exp(-decay) of theirs.

    Raises TaskError for numbers that cannot work, and where a client would have nothing to train on.
    """
    test_share = shift.test_share if test_share is None else test_share
    decay = shift.decay if decay is None else decay
    _check(clients, test_share, decay)
    each = clients // TYPES
    rows = []
    for client, part in enumerate(by_shares(labels, np.repeat(shift.shares(classes), each, axis=0) / each, rng)):
        trained = (1 - test_share) * (math.exp(-decay) if client >= clients // 2 else 1)
        parts = np.array([trained, 1 - test_share - trained, test_share])
        train, _, test = by_shares(labels[part], np.outer(parts, np.ones(classes)), rng)
        if len(train) == 0:
            raise TaskError(
                f"client {client} has {len(part)} samples, and would train on none of them",
                "lower decay or test_share, or take fewer clients",
            )
        rows.append((part[train], part[test]))
    return rows


def by_shares(labels: NDArray[Any], shares: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Sorted indices of parts, part p with the share `shares[p, y]` of label y, drawn at random.

    Cuts between parts are rounded, not sizes: int(x + 0.49), as in the release, so that nothing is lost or used twice.
    """
    parts: list[list[Indices]] = [[] for _ in shares]
    for label, own in enumerate(shares.T):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(own) * len(rows) + 0.49).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts)[:-1], strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def permutation(kind: int, classes: int) -> NDArray[np.int64]:
    """What a type calls each label, shape (classes,): types 0, 1 agree on 0.7 of them, so do 2, 3, and others on none.

    The paper's formulas for 20 labels, where 6 change places, with round(0.3 * classes) for the 6. Of an odd number
    that change places the middle one stays.
    """
    labels = np.arange(classes)
    moved = round(0.3 * classes)
    return (
        labels,
        np.where(labels < moved, moved - 1 - labels, labels),
        classes - 1 - labels,
        np.where(labels < moved, classes - moved + labels, classes - 1 - labels),
    )[kind]


def rotated(x: NDArray[np.float32], degrees: float) -> NDArray[np.float32]:
    """Images of shape (n, channels, side, side), turned counter-clockwise about their centre, bilinearly.

    Corners show what padding with the mirrored image, edge pixels repeated, would bring in, and need none of it: a
    place outside is reflected at the edge. The release pads by side // 2, more than the 0.21 side that corners reach.
    """
    angle = math.radians(degrees)
    cosine, sine = math.cos(angle), math.sin(angle)
    # From places in the result to places in the image, y downwards.
    back = torch.tensor([[cosine, -sine, 0], [sine, cosine, 0]], dtype=torch.float32)
    images = torch.from_numpy(x)
    places = nn.functional.affine_grid(back[None], [1, 1, *images.shape[2:]], align_corners=False)
    turned = nn.functional.grid_sample(
        images, places.expand(len(images), -1, -1, -1), mode="bilinear", padding_mode="reflection", align_corners=False
    )
    result: NDArray[np.float32] = turned.numpy()
    return result


def _check(clients: int, test_share: float, decay: float) -> None:
    if clients < TYPES or clients % TYPES:
        raise TaskError(
            f"{clients} clients cannot be of {TYPES} types, as many of each",
            f"set clients to a multiple of {TYPES}, for example 20",
        )
    if not 0 < test_share < 1:
        raise TaskError(f"test_share is {test_share}", "give a number between 0 and 1, for example 0.2")
    if not 0 <= decay < math.inf:
        raise TaskError(f"decay is {decay}", "give 0, for as many samples everywhere, or a number above it")


def _label_shares(classes: int) -> NDArray[np.float64]:
    if classes != LABEL_SHARES.shape[1]:
        raise TaskError(
            f"label_shift deals {LABEL_SHARES.shape[1]} classes, not {classes}", "take another partition or task"
        )
    return LABEL_SHARES


def _even_shares(classes: int) -> NDArray[np.float64]:
    return np.full((TYPES, classes), 1 / TYPES)


def _unchanged(kind: int, samples: Split, classes: int) -> Split:
    return samples


def _turned(kind: int, samples: Split, classes: int) -> Split:
    return Split(rotated(samples.x.astype(np.float32, copy=False), DEGREES[kind]), samples.y)


def _relabelled(kind: int, samples: Split, classes: int) -> Split:
    return Split(samples.x, permutation(kind, classes)[samples.y.astype(np.int64, copy=False)])


SHIFTS: dict[str, Shift] = {
    "concept_shift": Shift(1 / 6, 3, _even_shares, _relabelled),
    "feature_shift": Shift(1 / 6, 2, _even_shares, _turned),
    "label_shift": Shift(1 / 7, 5, _label_shares, _unchanged),
}
