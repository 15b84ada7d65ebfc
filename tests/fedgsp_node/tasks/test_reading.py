from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedgsp.errors import DataError
from fedgsp_node.tasks.reading import digits, read_idx, read_npz


@pytest.fixture
def big_npz(tmp_path: Path) -> Path:
    path = tmp_path / "big.npz"
    np.savez_compressed(
        path, x=np.random.default_rng(0).integers(0, 256, (9001, 3, 2), dtype=np.uint8), y=np.arange(4)
    )
    return path


def test_a_missing_key_is_named(big_npz: Path) -> None:
    with pytest.raises(DataError, match=r"big\.npz has no array 'z'"):
        read_npz(big_npz, ["x", "z"])


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.999])
def test_a_cut_npz_is_refused(big_npz: Path, kept: float) -> None:
    content = big_npz.read_bytes()
    big_npz.write_bytes(content[: int(kept if kept > 1 else kept * len(content))])
    with pytest.raises(DataError, match=r"big\.npz cannot be read as an \.npz file.*download or copy it again"):
        read_npz(big_npz, ["x"])


def test_a_damaged_npz_is_refused(big_npz: Path) -> None:
    content = bytearray(big_npz.read_bytes())
    content[20000] ^= 255
    big_npz.write_bytes(content)
    with pytest.raises(DataError, match="download or copy it again"):
        read_npz(big_npz, ["x"])


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}, {}], dtype=object))
    with pytest.raises(DataError, match="download or copy it again"):
        read_npz(path, ["x"])


def test_a_member_shorter_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.npz"
    np.save(tmp_path / "x.npy", np.zeros((50, 4), np.uint8))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes()[:-20])
    with pytest.raises(DataError, match="download or copy it again"):
        read_npz(path, ["x"])


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.npz does not exist"):
        read_npz(tmp_path / "absent.npz", ["x"])
    with pytest.raises(DataError, match="cannot be read"):
        read_npz(tmp_path, ["x"])


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_those_of_scikit_learn_wherever_it_keeps_them(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    if not found:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for ours, theirs in zip(digits(), load_digits(return_X_y=True), strict=True):
        assert np.array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


GOOD_IDX = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))


def test_an_idx_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.gz"
    path.write_bytes(gzip.compress(GOOD_IDX))
    assert read_idx(path, 2).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(GOOD_IDX)[:-12], id="cut gzip"),
        pytest.param(gzip.compress(GOOD_IDX[:-1]), id="too few values"),
        pytest.param(gzip.compress(GOOD_IDX + b"x"), id="too many values"),
        pytest.param(gzip.compress(GOOD_IDX[:6]), id="cut header"),
        pytest.param(gzip.compress(b""), id="nothing packed"),
        pytest.param(b"", id="empty file"),
        pytest.param(GOOD_IDX, id="not gzipped"),
        pytest.param(gzip.compress(b"\0\0\x0d\2" + GOOD_IDX[4:]), id="floats"),
        pytest.param(gzip.compress(b"\0\0\x08\1" + GOOD_IDX[4:]), id="another number of dimensions"),
        pytest.param(gzip.compress(b"abcd" + GOOD_IDX[4:]), id="another format"),
    ],
)
def test_a_file_that_is_not_the_idx_file_meant_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.gz cannot be read as a gzipped IDX file.*download or copy it again"):
        read_idx(path, 2)
