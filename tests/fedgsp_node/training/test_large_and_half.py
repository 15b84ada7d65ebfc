"""Steps of large parameters, and steps in float16, where a gradient may be infinite."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import OptimizerSettings
from tests.fedgsp_node.training.test_optimized import work_of
from tests.support.local_work import CrossEntropy, settings
from tests.support.trainings import ALGORITHMS

torch.set_num_threads(1)


def _wide() -> nn.Module:
    """A model with a parameter that counts as large."""
    return nn.Sequential(nn.Linear(10, 512), nn.ReLU(), nn.Linear(512, 520), nn.ReLU(), nn.Linear(520, 4))


class _FirstLossIsHuge(CrossEntropy):
    """Its first gradients are infinite in float16."""

    calls = 0

    def loss(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        self.calls += 1
        return super().loss(outputs, targets) * (1e38 if self.calls == 1 else 1)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad", "rmsprop"])
def test_a_first_step_that_is_left_out_leaves_no_trace(name: str) -> None:
    options = {"momentum": "0.9"} if name == "sgd" else {}
    digests = set()
    for before in (1.0, 1e6, -3.0):
        memory = [torch.full((512 * 520,), before) for _ in range(8)]  # what the heap has afterwards
        del memory
        how = OptimizerSettings(name, options, precision="float16")
        work, trained = work_of(how, _wide, settings(1, 5, 0.01), task=_FirstLossIsHuge())
        assert np.isfinite(ALGORITHMS["sgd"].train(work).loss)
        digests.add(trained.copy().digest)
        assert max(float(np.abs(array).max()) for array in trained.arrays.values()) < 10
    assert len(digests) == 1


class _Either(nn.Module):
    """Of two large layers, one is used in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(10, 30000), nn.Linear(10, 30000), nn.Linear(30000, 4)
        self.batches = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        found: torch.Tensor = self.last(self.first(x) if self.batches < 3 else self.second(x))
        return found


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_large_parameter_may_get_its_first_gradient_later_than_others(name: str) -> None:
    options = {"momentum": "0.9"} if name == "sgd" else {}
    work, trained = work_of(OptimizerSettings(name, options), _Either, settings(1, 5, 0.001))
    before = trained.copy()
    ALGORITHMS["sgd"].train(work)
    assert all(not np.array_equal(array, before.arrays[name]) for name, array in trained.arrays.items())


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_accumulation_loses_no_steps_in_float16(accumulate: int) -> None:
    how = OptimizerSettings("adam", precision="float16", accumulate=accumulate)
    work, _ = work_of(how, how=settings(1, 64, 0.001), count=512)
    work.samples._columns[0].mul_(4)
    assert ALGORITHMS["sgd"].train(work).steps == 8 / accumulate


def test_a_training_without_a_single_step_is_told() -> None:
    class Huge(CrossEntropy):
        def loss(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
            return super().loss(outputs, targets) * 1e38

    work, _ = work_of(OptimizerSettings("adam", precision="float16"), task=Huge())
    with pytest.raises(TaskError, match="no step was taken: in float16, the gradients of all 10 steps were infinite"):
        ALGORITHMS["sgd"].train(work)


def test_clipping_measures_what_the_optimiser_steps_in_any_precision() -> None:
    class Partly(CrossEntropy):
        def optimizer(self, parameters: Any, learning_rate: float) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters[2:], lr=learning_rate)

    moved = []
    for precision in ("", "float16"):
        how = OptimizerSettings("auto", precision=precision, clip_norm=0.01)
        work, trained = work_of(how, how=settings(1, 5, 1.0), count=5, task=Partly())
        before = trained.copy()
        ALGORITHMS["sgd"].train(work)
        there, then = (
            torch.cat([torch.from_numpy(a).ravel() for a in one.arrays.values()]) for one in (trained, before)
        )
        moved.append(float((there - then).norm()))
    assert moved == pytest.approx([0.01, 0.01], rel=1e-3)


class _Words(nn.Module):
    """A large table of which each batch needs a few rows."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.last = nn.EmbeddingBag(70000, 4, sparse=sparse), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.words((x.abs() * 1000).long()))
        return found


@pytest.mark.parametrize(
    "how", [OptimizerSettings("sgd", {"momentum": "0.9"}), OptimizerSettings("sgd", accumulate=2)]
)
def test_a_large_parameter_may_have_sparse_gradients(how: OptimizerSettings) -> None:
    found = []
    for sparse in (False, True):
        work, trained = work_of(how, partial(_Words, sparse), settings(1, 5, 0.1))
        ALGORITHMS["sgd"].train(work)
        found.append(trained)
    for name, array in found[0].arrays.items():
        assert np.allclose(np.asarray(found[1].arrays[name], np.float64), np.asarray(array, np.float64), atol=1e-6)


def test_sparse_gradients_of_a_large_parameter_are_refused_by_clipping_with_the_remedy() -> None:
    work, _ = work_of(OptimizerSettings("sgd", clip_norm=1.0), lambda: _Words(True))
    with pytest.raises(TaskError, match=r"sparse gradients, .*sparse=False, or train without --clip-norm"):
        ALGORITHMS["sgd"].train(work)
