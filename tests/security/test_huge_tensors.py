"""A file may name tensors that no memory holds: they are compared with the model before any value is read."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgsp.errors import ConfigError, DataError, UserError
from fedgsp.messages import Constant, TensorSpec
from fedgsp_node.cli import app
from fedgsp_node.finished import record
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run
from tests.support.run_directories import RUN, trained, write
from top_server import initial_file
from top_server.record import model_files

#: More than the memory of any machine that runs these tests.
HUGE = 1 << 38


def sparse(path: Path, *names: str, dtype: str = "U8") -> Path:
    """A safetensors file of a run whose last tensor has HUGE values; it takes a few bytes of the disk."""
    said = {"run": RUN, "scheme": "fedgsp", "round": "3", "seed": "0", "clients": ""}
    tensors = {
        name: {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        for at, (name, size) in enumerate(zip(names, [*[1] * (len(names) - 1), HUGE], strict=True))
    }
    header = json.dumps({"__metadata__": said, **tensors}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + HUGE + len(names) - 1)
    return path


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """Makes the directory of a run whose final model is such a file."""

    def make(*names: str, dtype: str = "U8", **settings: Any) -> Path:
        models = {"final": (trained(Digits(2), 0), ())}
        path = write(tmp_path / "run", Digits(2), models, task_option={"clients": "2"}, **settings)
        sparse(path / "models" / "final.safetensors", *names, dtype=dtype)
        return path

    return make


def exported(run: Path) -> None:
    _command("export", str(run), "--out", str(run.with_name("out.safetensors")))


def evaluated(run: Path) -> None:
    _command("evaluate", str(run), "--clients", "0")


def in_python(run: Path) -> None:
    Run(run).model()


def _command(*words: str) -> None:
    if error := CliRunner().invoke(app, words).exception:
        raise error


@pytest.mark.parametrize(
    "read", [exported, evaluated, lambda run: Run(run).model()], ids=["export", "evaluate", "Run"]
)
@pytest.mark.parametrize(
    ("names", "settings", "what"),
    [
        (
            ["1.weight"],
            {},
            r"the tensor '1\.weight' of .*final\.safetensors is uint8 \[274877906944\], and the task's",
        ),
        (["strange"], {}, "has a tensor 'strange' that the task's model has not"),
        (
            ["a", "b"],
            {"training": "fedfusion"},
            r"has 274,877,906,945 bytes of tensors that the task's model has not, more than a",
        ),
    ],
    ids=["another shape", "another name", "what a training adds"],
)
def test_tensors_of_a_run_are_compared_with_the_model_before_they_are_read(
    names: list[str],
    settings: dict[str, Any],
    what: str,
    read: Callable[[Path], object],
    made: Callable[..., Path],
) -> None:
    with pytest.raises(DataError, match=what):
        read(made(*names, **settings))


def test_what_a_training_adds_is_exported_with_the_model(made: Callable[..., Path]) -> None:
    run = made("fusion_weight", training="fedfusion")
    arrays = {**trained(Digits(2), 0).arrays, "fusion_weight": np.ones((2, 4), np.float32)}
    model_files.save(run / "models" / "final.safetensors", arrays, model_files.Origin(RUN, "fedgsp", 3, 0))
    assert Run(run).model()["fusion_weight"].tolist() == [[1] * 4] * 2


def test_a_dtype_that_no_model_has_is_told_with_its_tensor(made: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"the tensor 'strange' of .* has the dtype f8_e5m2, which no model has"):
        exported(made("strange", dtype="F8_E5M2", training="fedfusion"))


def test_constants_in_an_initial_model_are_compared_with_those_of_the_nodes_before_they_are_read(
    tmp_path: Path,
) -> None:
    path = sparse(tmp_path / "start.safetensors", "w", "mean")
    own, mean = TensorSpec("w", "uint8", (1,)), TensorSpec("mean", "float32", (2,))
    with pytest.raises(ConfigError, match=r"mean is uint8\[274877906944\] and should be float32\[2\]"):
        initial_file.check_fits(path, initial_file.Expected((own,), constants=(Constant(mean, b""),)))


def kept(path: Path) -> object:
    """What a node has kept, which stands in this file."""
    os.link(path, path.with_name(f"{RUN}-client-0.head.safetensors"))
    personal = PersonalState(path.parent)
    personal.open(RUN)
    return personal.load(0, "head")


READERS: dict[str, Callable[[Path], object]] = {
    "a finished run": lambda path: record.read(path.parents[1]),
    "a state": model_files.load,
    "an initial model": initial_file.check_readable,
    "a head": kept,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_that_has_no_room_in_memory_is_named(read: Callable[[Path], object], made: Callable[..., Path]) -> None:
    path = made("strange") / "models" / "final.safetensors"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 32), limits[1]))
    try:
        with pytest.raises(UserError, match="annot allocate memory") as caught:
            read(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert ".safetensors" in caught.value.what
