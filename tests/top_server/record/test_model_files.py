from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import numpy as np
import pytest

from fedgsp.errors import DataError, RunError
from top_server.record.model_files import ModelFiles, Origin, load, save

ORIGIN = Origin(run="r1", scheme="fedgsp", round=12, seed=7)
TENSORS: dict[str, np.ndarray] = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "count": np.array(3, dtype=np.int64),
    "empty": np.zeros((0, 4), dtype=np.float64),
}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_tensors_and_their_origin_come_back(tmp_path: Path) -> None:
    path = ModelFiles(tmp_path, "last").write_round(TENSORS, ORIGIN)
    assert path == tmp_path / "round-0012.safetensors"
    tensors, origin = load(path)
    assert origin == ORIGIN
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        np.testing.assert_array_equal(tensors[name], array)


def write_three_and_a_final(directory: Path, keep: str) -> None:
    checkpoints = ModelFiles(directory, keep)
    for number in (1, 2, 3):
        checkpoints.prune([checkpoints.write_round(TENSORS, dataclasses.replace(ORIGIN, round=number))])
    assert (directory / "round-0003.safetensors").exists()
    checkpoints.prune([checkpoints.write_final(TENSORS, dataclasses.replace(ORIGIN, round=3))])


def test_only_the_last_model_stays(tmp_path: Path) -> None:
    write_three_and_a_final(tmp_path, "last")
    assert names(tmp_path) == ["final.safetensors"]


def test_all_models_stay_where_they_are_wanted(tmp_path: Path) -> None:
    write_three_and_a_final(tmp_path, "all")
    rounds = [f"round-000{number}.safetensors" for number in (1, 2, 3)]
    assert names(tmp_path) == ["final.safetensors", *rounds]


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoints = ModelFiles(tmp_path, "last")
    checkpoints.write_round(TENSORS, dataclasses.replace(ORIGIN, round=1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # as a full disk would: the file cannot grow
    try:
        with pytest.raises(RunError, match=r"round-0002\.safetensors cannot be written: .*File too large"):
            checkpoints.write_round(TENSORS, dataclasses.replace(ORIGIN, round=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["round-0001.safetensors"]


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
