"""What a file of --initial-model must hold, and what is said if it does not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from fedgsp.errors import ConfigError
from fedgsp.messages import Constant, TensorSpec
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.weights import Weights
from fedgsp_node.model.torch_weights import digest, dtype_name
from top_server import initial_file
from top_server.choosing import choose
from top_server.initial_file import Expected

SPECS = (TensorSpec("body.weight", "float32", (2, 3)), TensorSpec("seen", "int64", (), trainable=False))
HEAD = TensorSpec("head.bias", "float32", (4,), head=True)
MODEL = {"body.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "seen": np.array(7)}


def written(folder: Path, tensors: dict[str, Any]) -> Path:
    path = folder / "start.safetensors"
    safetensors.numpy.save_file(tensors, path)
    return path


def told(name: str, tensor: torch.Tensor) -> Constant:
    """A constant as a node tells it."""
    return Constant(TensorSpec(name, dtype_name(tensor), tuple(tensor.shape)), digest(tensor))


def refused(path: Path, expected: Expected) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        initial_file.check_fits(path, expected)
    return caught.value


def test_the_values_of_the_file_replace_those_that_a_node_made(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL)
    initial_file.check_fits(path, Expected(SPECS, added=(HEAD,)))
    made = Weights.of({**MODEL, "body.weight": np.ones((2, 3)), "head.bias": np.full(4, 9.0)}, (*SPECS, HEAD))
    found = initial_file.with_values(path, made)
    assert found.arrays["body.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert int(found.arrays["seen"]) == 7
    assert found.arrays["head.bias"].tolist() == [9] * 4  # what the run adds, and the file lacks
    assert made.arrays["body.weight"].tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seen": None}, "lacks tensors of the task's model: seen"),
        ({"extra": np.zeros(1)}, "has tensors that the task's model does not have: extra"),
        ({"body.weight": np.zeros((3, 2), np.float32)}, "body.weight is float32[3, 2] and should be float32[2, 3]"),
        ({"body.weight": np.zeros((2, 3))}, "body.weight is float64[2, 3] and should be float32[2, 3]"),
        ({"head.bias": np.zeros(4)}, "has tensors that this scheme keeps with the clients: head.bias"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    tensors = {name: array for name, array in {**MODEL, **change}.items() if array is not None}
    assert what in refused(written(tmp_path, tensors), Expected(SPECS, heads={"head.bias"})).what


def test_a_tied_tensor_may_have_its_further_names(tmp_path: Path) -> None:
    """`fedgsp-node export` writes it under all of them, as `load_state_dict` takes it."""
    tied = {**MODEL, "decoder.weight": MODEL["body.weight"].copy()}
    initial_file.check_fits(written(tmp_path, tied), Expected(SPECS))
    tied["decoder.weight"][1, 2] = 9
    assert "does not have: decoder.weight" in refused(written(tmp_path, tied), Expected(SPECS)).what


def test_a_file_in_bfloat16_is_refused_with_the_dtype(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    safetensors.torch.save_file({"body.weight": torch.zeros(2, 3, dtype=torch.bfloat16)}, path)
    assert "body.weight is bfloat16[2, 3]" in refused(path, Expected(SPECS[:1])).what


def test_only_the_first_names_of_many_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, {f"t{number}": np.zeros(1) for number in range(9)})
    assert refused(path, Expected(())).what.endswith("t0, t1, t2, t3, t4, and 4 more")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_tensors_that_do_not_travel_may_be_there_with_the_values_of_the_nodes(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    constant = torch.ones(2, 2).to(dtype)
    path = written(tmp_path, {**MODEL, "mean": constant.numpy()})
    initial_file.check_fits(path, Expected(SPECS, constants=(told("mean", constant),)))
    error = refused(path, Expected(SPECS, constants=(told("mean", torch.zeros(2, 2).to(dtype)),)))
    assert "has other values for tensors that training does not change: mean" in error.what


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"body.weight": np.full((2, 3), np.nan, np.float32)})
    with pytest.raises(ConfigError, match=r"'body\.weight' holds NaN"):
        initial_file.with_values(path, Weights.of(MODEL, SPECS))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused_before_the_run_begins(tmp_path: Path, value: float) -> None:
    path = written(tmp_path, {**MODEL, "body.weight": np.full((2, 3), value, np.float32)})
    assert "'body.weight' holds NaN or infinite values" in refused(path, Expected(SPECS)).what


def test_a_tensor_that_does_not_travel_may_be_infinite(tmp_path: Path) -> None:
    mask = torch.full((2,), -torch.inf)
    path = written(tmp_path, {**MODEL, "mask": mask.numpy()})
    initial_file.check_fits(path, Expected(SPECS, constants=(told("mask", mask),)))


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"\xff" * 64, "fifo", "folder"])
def test_what_is_no_file_of_tensors_is_refused_before_anybody_is_waited_for(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "start.safetensors"
    if content == "fifo":
        os.mkfifo(path)
    elif content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--initial-model .* (cannot be read|is not a safetensors file)"):
        initial_file.check_readable(path)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no tensors"):
        initial_file.check_readable(written(tmp_path, {}))


@pytest.mark.parametrize("scheme", ["ifca", "flsc", "fesem"])
def test_schemes_that_begin_with_several_models_are_refused(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"begins with [0-9]+ models that must differ"):
        choose(RunConfig(scheme=scheme, initial_model=Path("start.safetensors")))
