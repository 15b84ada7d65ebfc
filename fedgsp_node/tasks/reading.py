"""Reads and checks data files, without pickle. Every error is a DataError that names the file."""

import contextlib
import gzip
import importlib.util
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import DataError
from fedgsp.files import check_regular
from fedgsp.task import Split

_IDX_UINT8 = 0x08
#: A compressed file may become this many times as long, and by so many bytes longer: images and tables do not shrink
#: further, and a file of some kilobytes must not fill the memory.
MOST_RATIO, MOST_MORE_BYTES = 100, 64 << 20


@contextlib.contextmanager
def reading(path: Path, form: str) -> Iterator[None]:
    """A context that turns errors of reading `path` into a DataError; `form` describes the expected format."""
    try:
        if not path.is_dir():
            check_regular(path)
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist", f"give the path of {form}") from error
    except (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as {form} ({error})",
            "the file is incomplete or has another format: download or copy it again",
        ) from error


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of a gzipped IDX file of bytes: shape (n, height, width) for `dimensions` = 3. Raises DataError."""
    form = f"a gzipped IDX file of bytes with {dimensions} dimensions"
    with reading(path, form), gzip.open(path) as file:
        start = file.read(4 + 4 * dimensions)
        if start[:4] != bytes([0, 0, _IDX_UINT8, dimensions]):
            raise ValueError(f"it starts with {start[:4].hex() or 'nothing'}")
        shape = tuple(int(length) for length in np.frombuffer(start[4:], ">u4"))
        size = math.prod(shape)
        check_unpacked(path, size)
        content = file.read(size + 1)  # one byte more would show that the file is longer than it says
        return np.frombuffer(content, np.uint8).reshape(shape)


def read_npz(path: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays `keys` of an .npz file; DataError if the file or an array is missing or damaged."""
    form = f"an .npz file with {', '.join(keys)}"
    with reading(path, form), zipfile.ZipFile(path) as archive:
        for key in keys:
            DataError.require(f"{key}.npy" in archive.namelist(), f"{path} has no array {key!r}", f"give {form}")
        # `zipfile` reads no more of a member than its entry says.
        check_unpacked(path, sum(archive.getinfo(f"{key}.npy").file_size for key in keys))
        arrays = {}
        for key in keys:
            check_header(archive, f"{key}.npy")
            with archive.open(f"{key}.npy") as member:
                arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
        return arrays


def check_unpacked(path: Path, size: int) -> None:
    """Raises DataError if a file is far too short for the `size` bytes that it would unpack to."""
    packed = path.stat().st_size
    DataError.require(
        size <= MOST_RATIO * packed + MOST_MORE_BYTES,
        f"{path} has {packed:,} bytes and would unpack to {size:,}",
        "if the data are really so uniform, store them without compression, as numpy.savez does",
    )


def check_header(archive: zipfile.ZipFile, name: str) -> None:
    """Raises ValueError if an array says that it has another number of bytes than its member of an archive holds.

    Otherwise memory would be taken for whatever the array says.
    """
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        held = archive.getinfo(name).file_size - member.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"{name} says that it has shape {shape} and dtype {dtype}, but holds {held} bytes")


def read_part(path: Path, part: str, shapes: Sequence[tuple[int, ...]], classes: int, form: str) -> Split:
    """The images `x_PART` and their labels `y_PART` of an .npz file; errors are those of `labelled`."""
    held = read_npz(path, [f"x_{part}", f"y_{part}"])
    return labelled(path, held[f"x_{part}"], shapes, path, held[f"y_{part}"], classes, form)


def labelled(
    path: Path,
    images: NDArray[Any],
    shapes: Sequence[tuple[int, ...]],
    label_path: Path,
    labels: NDArray[Any],
    classes: int,
    form: str,
) -> Split:
    """Images with their labels as int64.

    Raises DataError unless there is an image, the dtype is uint8, each image has one of `shapes`, and `check_labels`
    accepts the labels.
    """
    wanted = " or ".join(f"(n, {', '.join(map(str, shape))})" for shape in shapes)
    DataError.require(
        images.dtype == np.uint8 and images.shape[1:] in shapes and len(images),
        f"{path} holds images with dtype {images.dtype} and shape {images.shape}, not uint8 and {wanted}",
        f"give {form}",
    )
    return Split(images, check_labels(label_path, labels, len(images), classes, form))


def check_labels(path: Path, labels: NDArray[Any], count: int, classes: int, form: str) -> NDArray[np.int64]:
    """The labels as int64 of shape (count,); DataError unless they are `count` whole numbers in 0 .. classes - 1."""
    DataError.require(
        labels.dtype.kind in "iu" and labels.shape == (count,),
        f"{path} holds labels with dtype {labels.dtype} and shape {labels.shape} for {count} images",
        f"give {form}",
    )
    check_classes(path, labels, classes, f"give {form}")
    return labels.astype(np.int64)


def check_classes(path: Path, labels: NDArray[Any], classes: int, remedy: str) -> None:
    """Raises DataError for a label outside 0 .. classes - 1."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(f"{path} has the label {wrong[0]}, outside 0 .. {classes - 1}", remedy)


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The digits of scikit-learn's `load_digits`: pixels from 0 to 16, shape (1797, 64), and labels, shape (1797,)."""
    found = importlib.util.find_spec("sklearn")
    path = Path(found.origin if found and found.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return images, labels
    # Reading the file takes milliseconds; importing scikit-learn would take a second and 100 MB.
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
