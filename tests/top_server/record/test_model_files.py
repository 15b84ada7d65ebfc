from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import numpy as np
import pytest

from fedgsp.errors import DataError, RunError
from top_server.record.model_files import Origin, load, save

ORIGIN = Origin(run="r1", scheme="fedgsp", round=12, seed=7)
TENSORS: dict[str, np.ndarray] = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "count": np.array(3, dtype=np.int64),
    "empty": np.zeros((0, 4), dtype=np.float64),
}


def test_tensors_and_their_origin_come_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save(path, TENSORS, ORIGIN)
    tensors, origin = load(path)
    assert origin == ORIGIN
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        np.testing.assert_array_equal(tensors[name], array)


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path / "m.safetensors", TENSORS, ORIGIN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # as a full disk would: the file cannot grow
    try:
        with pytest.raises(RunError, match=r"m\.safetensors cannot be written: .*File too large"):
            save(tmp_path / "m.safetensors", TENSORS, dataclasses.replace(ORIGIN, round=13))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert load(tmp_path / "m.safetensors")[1] == ORIGIN


def test_whoever_may_read_other_files_may_read_a_model(tmp_path: Path) -> None:
    save(tmp_path / "m.safetensors", TENSORS, ORIGIN)
    (tmp_path / "other").touch()
    assert (tmp_path / "m.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_a_cut_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    save(path, TENSORS, ORIGIN)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match="cut or not safetensors"):
        load(path)


@pytest.mark.parametrize("place", [-1, -30, "r1", "12"])
def test_a_file_of_which_a_byte_has_changed_is_refused(place: int | str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save(path, TENSORS, ORIGIN)
    data = bytearray(path.read_bytes())
    data[place if isinstance(place, int) else data.index(f'"{place}"'.encode()) + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"m\.safetensors has changed since it was written"):
        load(path)


def test_a_file_without_a_digest_is_that_of_an_earlier_version(tmp_path: Path) -> None:
    import safetensors.numpy

    path = tmp_path / "m.safetensors"
    said = {"run": "r1", "scheme": "fedgsp", "round": "12", "seed": "7"}
    safetensors.numpy.save_file({"count": TENSORS["count"]}, path, said)
    assert load(path)[1] == ORIGIN


def test_a_file_of_another_origin_is_refused(tmp_path: Path) -> None:
    import safetensors.numpy

    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(TENSORS, path, {"run": "r1"})
    with pytest.raises(DataError, match="does not say which run"):
        load(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "nowhere.safetensors")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path)
