"""Reads FEMNIST, handwritten characters with their writers: the JSON files of LEAF, or one .npz file."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError
from fedgsp_node.tasks.decoded import decoded
from fedgsp_node.tasks.reading import read_npz, reading

CLASSES = 62
PARTS = ("train", "test")
_KEYS = ("images", "labels", "writers")
_SHAPE = (28, 28)
_PIXELS = 784
_LEAF_FORM = "a JSON file as LEAF writes it (users, num_samples, user_data)"
_NPZ_FORM = "an .npz file with x_train and x_test (uint8), y_train, y_test, writer_train and writer_test"


@dataclass(frozen=True, slots=True)
class Owned:
    """The samples of one part: images of shape (n, 28, 28), and the label and writer of each image, shape (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    writers: NDArray[np.int64]


class WriterFiles(NamedTuple):
    """The training part and the test part. A writer has the same number in both."""

    train: Owned
    test: Owned


def read_files(data: Path) -> WriterFiles:
    """Reads LEAF's folder if `data` is a folder, else an .npz file; DataError if data are missing or wrong."""
    if not data.exists():
        raise DataError(
            f"{data} does not exist", "give the folder that holds LEAF's train/ and test/, or an .npz file"
        )
    if data.is_dir():
        files = [path for part in PARTS for path in _leaf_files(data / part)]
        held = decoded("femnist-leaf", files, lambda: _flat(_read_folder(data)))
    else:
        held = decoded("femnist", [data], lambda: _flat(_read_npz(data)))
    return WriterFiles(*(Owned(*(held[f"{part}-{key}"] for key in _KEYS)) for part in PARTS))


def _flat(files: WriterFiles) -> dict[str, NDArray[Any]]:
    return {f"{part}-{key}": getattr(getattr(files, part), key) for part in PARTS for key in _KEYS}


def _read_npz(path: Path) -> WriterFiles:
    held = read_npz(path, [f"{key}_{part}" for part in PARTS for key in ("x", "y", "writer")])
    return WriterFiles(*(_owned(path, part, held) for part in PARTS))


def _owned(path: Path, part: str, held: dict[str, NDArray[Any]]) -> Owned:
    images = held[f"x_{part}"]
    if images.dtype != np.uint8 or images.shape[1:] != _SHAPE:
        raise DataError(
            f"{path}: x_{part} has dtype {images.dtype} and shape {images.shape}, not uint8 and (n, 28, 28)",
            f"give {_NPZ_FORM}",
        )
    for key in (f"y_{part}", f"writer_{part}"):
        if held[key].dtype.kind not in "iu" or held[key].shape != images.shape[:1]:
            raise DataError(
                f"{path}: {key} has dtype {held[key].dtype} and shape {held[key].shape} for {len(images)} images",
                f"give {_NPZ_FORM}",
            )
    labels, writers = (held[f"{key}_{part}"].astype(np.int64) for key in ("y", "writer"))
    _check_labels(path, labels)
    if (writers < 0).any():
        raise DataError(f"{path}: writer_{part} contains the number {writers.min()}", "number the writers from 0")
    return Owned(images, labels, writers)


def _read_folder(folder: Path) -> WriterFiles:
    """Reads `train/*.json` and `test/*.json`. Writers are numbered in the order of their names."""
    parts = {part: _read_leaf(folder / part) for part in PARTS}
    numbers = {user: number for number, user in enumerate(sorted({*parts["train"], *parts["test"]}))}
    owned = []
    for users in parts.values():
        order = sorted(users)
        images = _joined([users[user][0] for user in order], (0, *_SHAPE), np.uint8)
        labels = [users[user][1] for user in order]
        writers = [np.full(len(own), numbers[user]) for user, own in zip(order, labels, strict=True)]
        owned.append(Owned(images, _joined(labels, (0,), np.int64), _joined(writers, (0,), np.int64)))
    return WriterFiles(*owned)


def _joined(pieces: list[NDArray[Any]], empty: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.empty(empty, dtype)


def _leaf_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(
            f"{folder} holds no .json file", "give the folder that holds LEAF's train/ and test/, or an .npz file"
        )
    return paths


def _read_leaf(folder: Path) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """User -> (images, labels), from all files of one part. The samples of a user may be in several files."""
    pieces = defaultdict(list)
    for path in _leaf_files(folder):
        with reading(path, _LEAF_FORM), path.open(encoding="utf-8") as file:
            content = json.load(file)
        held = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(held, dict):
            raise DataError(f"{path} has no object user_data", f"give {_LEAF_FORM}")
        # Converted to bytes before the next file is read: as Python floats the pixels need thirty times the memory.
        for user, samples in held.items():
            pieces[user].append(_user(path, user, samples))
    return {
        user: (np.concatenate([x for x, _ in own]), np.concatenate([y for _, y in own]))
        for user, own in pieces.items()
    }


def _user(path: Path, user: str, samples: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        x = np.asarray(samples["x"], np.float64).reshape(len(samples["x"]), _PIXELS)
        y = np.asarray(samples["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: user {user!r} lacks a list x with {_PIXELS} numbers per image, or a list y ({error!r})",
            f"give {_LEAF_FORM}",
        ) from error
    if y.shape != (len(x),) or (len(y) and y.dtype.kind not in "iu"):
        raise DataError(
            f"{path}: user {user!r} has {len(x)} images, but not one whole-number label for each", f"give {_LEAF_FORM}"
        )
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError(f"{path}: user {user!r} has pixels outside 0 .. 1", f"give {_LEAF_FORM}")
    _check_labels(path, y)
    # This is exact, because LEAF's pixels are bytes divided by 255.
    return np.rint(255 * x).astype(np.uint8).reshape(-1, *_SHAPE), y.astype(np.int64)


def _check_labels(path: Path, labels: NDArray[Any]) -> None:
    wrong = labels[(labels < 0) | (labels >= CLASSES)]
    if len(wrong):
        raise DataError(
            f"{path} has the label {wrong[0]}, outside 0 .. {CLASSES - 1}", "give FEMNIST with the labels of LEAF"
        )
