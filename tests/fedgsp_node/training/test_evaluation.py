"""Evaluation counts what a plain loop counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from fedgsp.messages import Evaluated
from fedgsp_node.samples import Samples
from fedgsp_node.training.control import Control, StoppedError
from fedgsp_node.training.evaluation import BATCH_SIZE, batch_size, evaluate
from tests.support.blobs_task import Blobs


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def trained() -> nn.Module:
    torch.manual_seed(0)
    module = Blobs().model().train()
    for _ in range(5):
        module(torch.randn(8, 6) + 1)  # statistics that differ from those of a batch
    return module


@pytest.mark.parametrize("count", [1, BATCH_SIZE - 1, BATCH_SIZE, BATCH_SIZE + 1, 2 * BATCH_SIZE + 3])
def test_counts_are_those_of_a_plain_loop_in_evaluation_mode(count: int) -> None:
    module, (x, y) = trained(), data(count)
    control = Control()
    found = evaluate(module, Blobs(), Samples(x, y), control)
    with torch.no_grad():
        outputs = [module.eval()(x[i : i + 1])[0] for i in range(count)]
    assert (found.samples, found.judged) == (count, count)
    assert found.correct == sum(int(output.argmax()) == int(target) for output, target in zip(outputs, y, strict=True))
    expected = sum(float(nn.functional.cross_entropy(out, target)) for out, target in zip(outputs, y, strict=True))
    assert found.loss_sum == pytest.approx(expected, rel=1e-4)
    assert control.mark == -(-count // BATCH_SIZE)


def test_it_changes_nothing_in_the_model_and_repeats_itself() -> None:
    module, (x, y) = trained(), data(50)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert evaluate(module, Blobs(), Samples(x, y), Control()) == evaluate(module, Blobs(), Samples(x, y), Control())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_an_empty_test_part_counts_nothing() -> None:
    x, y = data(0)
    assert evaluate(trained(), Blobs(), Samples(x, y), Control()) == Evaluated(0, 0, 0.0)


def test_it_stops_when_told_to() -> None:
    control = Control()
    control.stop.set()
    x, y = data(3 * BATCH_SIZE)
    with pytest.raises(StoppedError):
        evaluate(trained(), Blobs(), Samples(x, y), control)
    assert control.mark == 1


def test_the_tasks_own_measure_decides_what_is_right() -> None:
    class Strict(Blobs):
        def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int:
            return 1

    x, y = data(BATCH_SIZE + 1)
    assert evaluate(trained(), Strict(), Samples(x, y), Control()).correct == 2


class _Pair(NamedTuple):
    logits: torch.Tensor
    sums: torch.Tensor


class _Wrapped(nn.Module):
    """Returns its outputs in another shape."""

    def __init__(self, shape: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.shape = trained(), shape

    def forward(self, x: torch.Tensor) -> Any:
        return self.shape(self.inner(x))


class _Asking(Blobs):
    """Looks into outputs by `logits`; its figure needs all of them."""

    def __init__(self, logits: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self._logits = logits

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(self._logits(outputs), targets)

    def correct(self, outputs: Any, targets: torch.Tensor) -> Any:
        return super().correct(self._logits(outputs), targets)

    def metrics(self, outputs: Any, targets: torch.Tensor) -> dict[str, float]:
        return {"rows": len(self._logits(outputs)), "sum": float(self._logits(outputs).sum())}


@pytest.mark.parametrize(
    ("shape", "logits"),
    [
        (lambda z: z, lambda out: out),
        (lambda z: (z.sum(1), z), lambda out: out[1]),
        (lambda z: [z, z.sum(1)], lambda out: out[0]),
        (lambda z: {"logits": z, "more": (z, {"sums": z.sum(1)})}, lambda out: out["logits"]),
        (lambda z: _Pair(z, z.sum(1)), lambda out: out.logits),
    ],
    ids=["tensor", "tuple", "list", "dict", "named"],
)
def test_metrics_see_all_outputs_in_the_shape_the_model_gives_them(
    shape: Callable[[torch.Tensor], Any], logits: Callable[[Any], torch.Tensor]
) -> None:
    x, y = data(2 * BATCH_SIZE + 3)
    module = _Wrapped(shape)
    found = evaluate(module, _Asking(logits), Samples(x, y), Control())
    assert dataclasses.replace(found, metrics={}) == evaluate(module.inner, Blobs(), Samples(x, y), Control())
    with torch.no_grad():
        expected = float(module.inner(x).sum())
    assert found.metrics == {"rows": len(x), "sum": pytest.approx(expected, rel=1e-4)}


class _Opaque:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def test_outputs_that_cannot_be_joined_cost_the_figures_only(caplog: pytest.LogCaptureFixture) -> None:
    x, y = data(5)
    found = evaluate(_Wrapped(_Opaque), _Asking(lambda out: out.logits), Samples(x, y), Control())
    failed = found.metrics_failed
    assert failed is not None
    assert "the model returned _Opaque" in caplog.text
    assert "the model returned _Opaque" in failed.detail
    assert dataclasses.replace(found, metrics_failed=None) == evaluate(trained(), Blobs(), Samples(x, y), Control())


@pytest.mark.parametrize(
    ("shape", "together"),
    [((0, 5), 256), ((9, 1, 28, 28), 256), ((9, 3, 32, 32), 85), ((9, 3, 224, 224), 32), ((9,), 256)],
)
def test_fewer_large_samples_are_evaluated_together(shape: tuple[int, ...], together: int) -> None:
    assert batch_size(Samples(torch.zeros(shape), torch.zeros(shape))) == together
