"""A run from a file has the bits of a run whose initial model had these values."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from fedgsp.errors import ConfigError
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, State, assert_same_bits
from tests.support.reference_groups import GroupReference, assert_equals
from tests.support.reference_streams import Smoothing, StreamReference
from tests.support.trainings import numbers

SIX = range(6)
TASK = {"clients": "12"}
LAYOUT = ([0, 3, 5], [1, 2, 4])


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


def given() -> State:
    """Other weights than those of seed 0."""
    return Reference(load_task("digits", TASK), SIX, rounds=1, seed=5).initial()


def written(folder: Path, tensors: State) -> Path:
    path = folder / "start.safetensors"
    safetensors.numpy.save_file(tensors, path)
    return path


def from_file(kind: type[Reference], state: State | None = None, **changes: Any) -> Any:
    class FromFile(kind):  # type: ignore[misc, valid-type]
        def initial(self) -> State:
            return state or given()

    return FromFile(load_task("digits", TASK), SIX, rounds=2, **changes)


@pytest.mark.parametrize("dtype", ["exact", pytest.param("bfloat16", marks=pytest.mark.slow)])
async def test_a_relay_starts_from_a_file(tmp_path: Path, dtype: str) -> None:
    path = written(tmp_path, given())
    config = settings(tmp_path / "run", task_option=TASK, initial_model=path, wire_dtype=dtype)
    run = await play(config, nodes(*LAYOUT, clients=TASK["clients"]))
    expected = from_file(Reference, beta=2, sampling_rate=1.0, wire_dtype=dtype).play_fedgsp()
    assert_same_bits(run.model(2), expected[-1])
    (told,) = run.of_kind("initial_model_read")
    assert told["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("scheme", ["hcct", pytest.param("independent", marks=pytest.mark.slow)])
async def test_so_does_every_model_of_a_scheme_with_several(tmp_path: Path, scheme: str) -> None:
    config = settings(tmp_path / "run", scheme=scheme, task_option=TASK, initial_model=written(tmp_path, given()))
    run = await play(config, nodes(*LAYOUT, clients=TASK["clients"]))
    oracle = from_file(GroupReference)
    assert_equals(run, oracle.play_hcct() if scheme == "hcct" else oracle.play_independent())


async def test_gamma_of_a_file_is_what_the_merge_smooths_from(tmp_path: Path) -> None:
    options, gamma = {"operator": "single"}, np.array([0.5])
    start = {**given(), "fusion_gamma": gamma.astype(np.float32)}
    config = settings(
        tmp_path / "run",
        scheme="fedfusion",
        training_option=options,
        sampling_rate=1.0,
        task_option=TASK,
        initial_model=written(tmp_path, start),
    )
    run = await play(config, nodes(*LAYOUT, clients=TASK["clients"]))
    oracle = {"training": "fedfusion", "numbers": numbers("fedfusion", options), "merge": Smoothing(gamma=gamma)}
    expected = from_file(StreamReference, start, sampling_rate=1.0, **oracle).play_fedavg()
    assert_same_bits(run.model(2), expected[-1])
    assert 0.45 < run.model(2)["fusion_gamma"].item() < 0.55


@pytest.mark.parametrize("bad", [0, 1])
async def test_one_node_that_makes_another_initial_model_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    honest = Clients.initial_weights

    def made(clients: Clients, seed: int) -> Weights:
        weights = honest(clients, seed).to_change()
        if bad in {one.client for one in clients.hosted}:
            weights.buffer.view(np.float32)[...] *= 100
        return weights

    monkeypatch.setattr(Clients, "initial_weights", made)
    config = settings(tmp_path / "run", task_option=TASK)
    run = await play(config, nodes([0, 3], [1, 4], [2, 5], clients=TASK["clients"]))
    expected = Reference(load_task("digits", TASK), SIX, rounds=2, beta=2, sampling_rate=1.0).play_fedgsp()
    assert_same_bits(run.model(2), expected[-1])
    (told,) = run.of_kind("initial_models_differ")
    assert len(set(told["digests"].values())) == 2
    assert told["reason"].endswith(f" counts, and n{bad} made another one")


async def test_a_file_of_another_model_is_refused_when_the_first_node_is_there(tmp_path: Path) -> None:
    name = next(iter(given()))
    tensors = {**given(), name: np.zeros((3, 2), np.float32)}
    config = settings(tmp_path / "run", task_option=TASK, initial_model=written(tmp_path, tensors), min_nodes=9)
    with pytest.raises(ExceptionGroup) as caught:
        await play(config, nodes(*LAYOUT, clients=TASK["clients"]))
    refused = [error for error in caught.value.exceptions if isinstance(error, ConfigError)]
    assert refused, caught.value.exceptions
    assert f"has tensors of another shape or dtype: {name} is float32[3, 2] and should be" in refused[0].what
