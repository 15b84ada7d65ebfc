from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.user_modules import started_in


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where decoded files are kept, not the user's own directory."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("FEDGSP_CACHE", str(folder))
    return folder


@pytest.fixture
def examples() -> Iterator[Path]:
    """The folder of the examples, in which the test runs."""
    folder = Path(__file__).parents[3] / "examples"
    with started_in(folder):
        yield folder


@pytest.fixture
def real_data() -> Path:
    """The folder of real data files, named by FEDGSP_DATA."""
    folder = os.environ.get("FEDGSP_DATA")
    if not folder:
        pytest.skip("FEDGSP_DATA names no folder with data")
    return Path(folder)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture
def grey_arrays() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "x_train": rng.integers(0, 256, (200, 28, 28), dtype=np.uint8),
        "y_train": np.arange(200, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (60, 28, 28), dtype=np.uint8),
        "y_test": np.arange(60, dtype=np.uint8) % 10,
    }


@pytest.fixture
def idx_folder(tmp_path: Path, grey_arrays: dict[str, Any]) -> Path:
    """`grey_arrays` as the four files that MNIST is published in."""
    folder = tmp_path / "idx"
    folder.mkdir()
    for part, official in (("train", "train"), ("test", "t10k")):
        for axis, name in (("x", "images-idx3"), ("y", "labels-idx1")):
            content = gzip.compress(idx_bytes(grey_arrays[f"{axis}_{part}"]))
            (folder / f"{official}-{name}-ubyte.gz").write_bytes(content)
    return folder


@pytest.fixture
def grey_npz(tmp_path: Path, grey_arrays: dict[str, Any]) -> Path:
    path = tmp_path / "grey.npz"
    np.savez_compressed(path, **grey_arrays)
    return path


@pytest.fixture
def femnist_arrays() -> dict[str, Any]:
    """Five writers, the n-th with 4 + 2n training and n + 1 test samples."""
    rng = np.random.default_rng(8)
    arrays = {}
    for part, sizes in (("train", [4, 6, 8, 10, 12]), ("test", [1, 2, 3, 4, 5])):
        count = sum(sizes)
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 62, count, dtype=np.uint8)
        arrays[f"writer_{part}"] = np.repeat(np.arange(5, dtype=np.int32), sizes)
    return arrays


@pytest.fixture
def femnist_npz(tmp_path: Path, femnist_arrays: dict[str, Any]) -> Path:
    path = tmp_path / "femnist.npz"
    np.savez_compressed(path, **femnist_arrays)
    return path


@pytest.fixture
def leaf_folder(tmp_path: Path, femnist_arrays: dict[str, Any]) -> Path:
    """`femnist_arrays` as LEAF writes them, writers 0-2 and 3-4 in different files."""
    for part in ("train", "test"):
        folder = tmp_path / "leaf" / part
        folder.mkdir(parents=True)
        for number, writers in enumerate(([0, 1, 2], [3, 4])):
            users, user_data = [f"f000{writer}_11" for writer in writers], {}
            for user, writer in zip(users, writers, strict=True):
                own = femnist_arrays[f"writer_{part}"] == writer
                x = (femnist_arrays[f"x_{part}"][own].reshape(-1, 784) / 255).tolist()
                user_data[user] = {"x": x, "y": femnist_arrays[f"y_{part}"][own].tolist()}
            sizes = [len(user_data[user]["y"]) for user in users]
            content = {"users": users, "num_samples": sizes, "user_data": user_data}
            (folder / f"all_data_{number}.json").write_text(json.dumps(content))
    return tmp_path / "leaf"


@pytest.fixture
def cifar_arrays() -> dict[str, Any]:
    rng = np.random.default_rng(9)
    return {
        "x_train": rng.integers(0, 256, (500, 32, 32, 3), dtype=np.uint8),
        "y_train": rng.permutation(np.arange(500) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8),
        "y_test": np.arange(40, dtype=np.uint8) % 10,
    }


@pytest.fixture
def cifar_npz(tmp_path: Path, cifar_arrays: dict[str, Any]) -> Path:
    path = tmp_path / "cifar.npz"
    np.savez(path, **cifar_arrays)
    return path


@pytest.fixture
def cifar_folder(tmp_path: Path, cifar_arrays: dict[str, Any]) -> Path:
    """`cifar_arrays` as the files of the binary version, the training batches unlike in size."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    cuts = [0, 50, 150, 300, 400, 500]
    pieces = [("train", a, b, f"data_batch_{n}") for n, (a, b) in enumerate(itertools.pairwise(cuts), 1)]
    for part, begin, end, name in [*pieces, ("test", 0, 40, "test_batch")]:
        planes = cifar_arrays[f"x_{part}"][begin:end].transpose(0, 3, 1, 2).reshape(end - begin, -1)
        records = np.hstack([cifar_arrays[f"y_{part}"][begin:end, None], planes])
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder
