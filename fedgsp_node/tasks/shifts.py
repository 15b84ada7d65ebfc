"""Shifts of FedCollab: four types of clients that differ in labels, in features or in the concept.

Section 5.5 of docs/algorithms.md has the formulas. Client k of N (counted from 0) has type 4k // N. The first half of
the clients is large; the other clients train on a small part of their samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedgsp.partitions import Indices, cut_by_label
from fedgsp.require import require
from fedgsp.task import Split

TYPES = 4
#: Rotation by type, counter-clockwise, as in the paper. The authors' release uses the opposite signs.
DEGREES = (25, -25, 155, -155)
#: Shape (types, labels): the share of a label's samples for all clients of a type together. The rest is unused.
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
    """The difference between types of clients. `test_share` and `decay` are the defaults, from the paper."""

    test_share: float
    decay: float
    #: Number of classes -> the share of each label for each type, shape (4, classes).
    shares: Callable[[int], NDArray[np.float64]]
    #: Type, samples as inputs of the model, number of classes -> the samples as clients of this type have them.
    change: Callable[[int, Split, int], Split]


def client_type(client: int, clients: int) -> int:
    """The type of one client, from 0 to 3."""
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
    """(Training rows, test rows) of each client, as indices into `labels`; no row appears twice.

    Small clients train on the share exp(-decay) of their training samples. Raises TaskError for impossible options,
    and if a client would have no training samples.
    """
    test_share = shift.test_share if test_share is None else test_share
    decay = shift.decay if decay is None else decay
    require(
        clients >= TYPES and clients % TYPES == 0,
        f"{clients} clients cannot be divided equally among {TYPES} types",
        f"set clients to a multiple of {TYPES}, for example 20",
    )
    require(0 < test_share < 1, f"test_share is {test_share}", "give a number between 0 and 1, for example 0.2")
    require(0 <= decay < math.inf, f"decay is {decay}", "give 0 for clients of equal size, or a number above 0")
    each = clients // TYPES
    rows = []
    for client, part in enumerate(by_shares(labels, np.repeat(shift.shares(classes), each, axis=0) / each, rng)):
        trained = (1 - test_share) * (math.exp(-decay) if client >= clients // 2 else 1)
        parts = np.array([trained, 1 - test_share - trained, test_share])
        train, _, test = by_shares(labels[part], np.outer(parts, np.ones(classes)), rng)
        require(
            len(train),
            f"client {client} has {len(part)} samples, and none of them would be for training",
            "lower decay or test_share, or set fewer clients",
        )
        rows.append((part[train], part[test]))
    return rows


def by_shares(labels: NDArray[Any], shares: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Sorted sample indices of each part, drawn at random. Part p gets the share `shares[p, y]` of label y.

    `labels` has shape (n,), `shares` has shape (parts, labels). The cuts between parts are rounded by int(x + 0.49),
    as in the authors' release. Sizes are not rounded, so no sample is lost or used twice.
    """

    def cuts(label: int, count: int) -> NDArray[np.float64]:
        return np.cumsum(shares[:, label]) * count + 0.49

    return [np.sort(part) for part in cut_by_label(labels, range(shares.shape[1]), cuts, rng)[:-1]]


def permutation(kind: int, classes: int) -> NDArray[np.int64]:
    """The new name of each label for clients of type `kind`, shape (classes,).

    Types 0 and 1 agree on about 70 % of the labels, as do types 2 and 3; other pairs agree on hardly any. The
    formulas are those of FedCollab for 20 labels, of which 6 change names; here round(0.3 * classes) replaces the 6.
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
    """Images of shape (n, channels, side, side), rotated counter-clockwise about the centre, with bilinear sampling.

    A place outside the image is reflected at the edge. In the corners this gives the same pixels as the padding by
    side // 2 mirrored pixels in the authors' release, because a rotation reaches at most 0.21 side over the edge.
    """
    angle = math.radians(degrees)
    cosine, sine = math.cos(angle), math.sin(angle)
    # Maps places in the result to places in the image; y points downwards.
    back = torch.tensor([[cosine, -sine, 0], [sine, cosine, 0]], dtype=torch.float32)
    images = torch.from_numpy(x)
    places = nn.functional.affine_grid(back[None], [1, 1, *images.shape[2:]], align_corners=False)
    turned = nn.functional.grid_sample(
        images, places.expand(len(images), -1, -1, -1), mode="bilinear", padding_mode="reflection", align_corners=False
    )
    return np.asarray(turned.numpy(), np.float32)


def _label_shares(classes: int) -> NDArray[np.float64]:
    require(
        classes == LABEL_SHARES.shape[1],
        f"label_shift needs {LABEL_SHARES.shape[1]} classes, not {classes}",
        "choose another partition or task",
    )
    return LABEL_SHARES


def _turned(kind: int, samples: Split, classes: int) -> Split:
    return Split(rotated(samples.x.astype(np.float32, copy=False), DEGREES[kind]), samples.y)


def _relabelled(kind: int, samples: Split, classes: int) -> Split:
    return Split(samples.x, permutation(kind, classes)[samples.y.astype(np.int64, copy=False)])


SHIFTS: dict[str, Shift] = {
    "concept_shift": Shift(1 / 6, 3, lambda classes: np.full((TYPES, classes), 1 / TYPES), _relabelled),
    "feature_shift": Shift(1 / 6, 2, lambda classes: np.full((TYPES, classes), 1 / TYPES), _turned),
    "label_shift": Shift(1 / 7, 5, _label_shares, lambda _kind, samples, _classes: samples),
}
