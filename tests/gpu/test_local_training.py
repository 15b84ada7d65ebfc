"""One client's training on a real GPU: the same bits each time, and what the CPU computes but for rounding."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import Additions, OptimizerSettings, TrainingSettings
from fedgsp.optimizers import AUTO, KEPT, OPTIMIZERS
from fedgsp_node.clients import Clients
from fedgsp_node.devices import CPU, described, device_of
from fedgsp_node.kept.personal_state import OPTIMIZER
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from fedgsp_node.training.stepping import MOST_LOSSES
from tests.support.gpu import DRAWING, GPU, MODELS, NEEDS_GPU, OfKind, distance, hosted, values
from tests.support.kept_state import keep
from tests.support.trainings import ALGORITHMS

pytestmark = NEEDS_GPU
#: Trainings that need a layer of features, and the models whose layer 0 is one.
EXTRACTORS = {"fedmmd": "0", "fedfusion": "0"}
DENSE = ("mlp", "norm-and-dropout", "partly-frozen")
PAIRS = [(name, kind) for name in ALGORITHMS for kind in MODELS if name not in EXTRACTORS or kind in DENSE]


def how(algorithm: str = "sgd", optimizer: OptimizerSettings | None = None, epochs: int = 2) -> TrainingSettings:
    return TrainingSettings(algorithm, epochs, 4, 0.01, seed=0, optimizer=optimizer)


def clients(kind: str, algorithm: str, device: torch.device) -> Clients:
    found = hosted(kind, device, OfKind(kind, EXTRACTORS.get(algorithm, "")))
    if algorithm == "fedfusion":
        found.extend(Additions("fedfusion"))
    return found


def trained(found: Clients, settings: TrainingSettings, client: int = 0) -> Any:
    return found.train(client, found.initial_weights(0), settings, 1, Control())


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
def test_every_training_gives_the_same_bits_each_time_and_nearly_those_of_the_cpu(algorithm: str, kind: str) -> None:
    here = clients(kind, algorithm, GPU)
    first = trained(here, how(algorithm))
    trained(here, how(algorithm), client=1)
    torch.rand(7, device=GPU)
    for again in (trained(here, how(algorithm)), trained(clients(kind, algorithm, GPU), how(algorithm))):
        assert again.after.digest == first.after.digest
        assert (again.loss, again.steps) == (first.loss, first.steps)
        assert again.keeps.keys() == first.keeps.keys()
        for purpose, arrays in first.keeps.items():
            assert all(np.array_equal(array, again.keeps[purpose][name]) for name, array in arrays.items())
    if kind in DRAWING:
        return
    there = trained(clients(kind, algorithm, CPU), how(algorithm))
    moved = distance(values(there.before), values(there.after))
    assert moved > 0
    coarse = 0.05 if kind == "bfloat16" else 1e-3
    assert distance(values(first.after), values(there.after)) < coarse * moved
    assert first.loss == pytest.approx(there.loss, rel=1e-2 if kind == "bfloat16" else 1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_an_evaluation_gives_the_same_figures_and_nearly_those_of_the_cpu(kind: str) -> None:
    here, there = clients(kind, "sgd", GPU), clients(kind, "sgd", CPU)
    start = here.initial_weights(0)
    assert start.digest == there.initial_weights(0).digest
    first, again = (here.evaluate(0, start, Control()) for _ in range(2))
    assert first == again
    other = there.evaluate(0, start, Control())
    assert first.loss_sum == pytest.approx(other.loss_sum, rel=1e-2 if kind == "bfloat16" else 1e-4)
    assert first.samples == other.samples == 5
    assert first.correct == other.correct or kind == "bfloat16"


@pytest.mark.parametrize("precision", ["", "bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.built_in if name != AUTO])
def test_every_optimiser_gives_the_same_bits_in_every_precision(name: str, precision: str) -> None:
    given = {"momentum": "0.9"} if name == "sgd" else {}
    settings = how("sgd", OptimizerSettings(name, given, precision=precision, clip_norm=1.0, accumulate=2))
    for kind in ("mlp", "pictures", "attentive"):
        first, again = (trained(clients(kind, "sgd", GPU), settings) for _ in range(2))
        assert first.after.digest == again.after.digest
        assert np.isfinite(first.loss)
        assert first.after.digest != first.before.digest


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.built_in if name != AUTO])
def test_a_kept_state_of_an_optimiser_goes_on(name: str) -> None:
    """The second training begins where the first has left the optimiser, and not afresh; the same bits each time."""
    given = {"momentum": "0.9"} if name == "sgd" else {}
    results = {}
    for state, attempt in ((KEPT, 0), (KEPT, 1), ("", 0)):
        here = clients("mlp", "sgd", GPU)
        settings = how("sgd", OptimizerSettings(name, given, state=state), epochs=1)
        learned = trained(here, settings)
        if OPTIMIZER in learned.keeps:
            keep(here.personal, 0, OPTIMIZER, learned.keeps[OPTIMIZER], 1)
        second = here.train(0, learned.after, settings, 2, Control())
        results[state, attempt] = second.after.digest
    assert results[KEPT, 0] == results[KEPT, 1]
    assert results[KEPT, 0] != results["", 0]


class Hungry(OfKind):
    """Wants more memory than any GPU has, once."""

    once = True

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.once and outputs.requires_grad:
            self.once = False
            torch.empty(2**42, dtype=torch.uint8, device=outputs.device)
        return super().loss(outputs, targets)


def test_a_client_that_fills_the_memory_of_the_gpu_is_skipped_with_figures_and_the_next_one_trains() -> None:
    here = hosted("mlp", GPU, Hungry("mlp"))
    with pytest.raises(OrderError) as caught:
        trained(here, how())
    told = caught.value.failure.detail
    assert "the memory of cuda:0 is full: " in told
    assert "GiB are free, and this node took up to" in told
    assert "Lower --batch-size (--accumulate makes up for it)" in told
    assert trained(here, how(), client=1).after.digest == trained(clients("mlp", "sgd", GPU), how(), 1).after.digest


class Placing(OfKind):
    """Moves itself."""

    def model(self) -> torch.nn.Module:
        return super().model().cuda()


def test_a_model_that_moves_itself_is_told_to_leave_that_to_the_node() -> None:
    with pytest.raises(TaskError) as caught:
        hosted("mlp", GPU, Placing("mlp")).rehearse()
    assert "cuda" in f"{caught.value.what} {caught.value.remedy}"


class MakesOnCpu(OfKind):
    """Makes a tensor in its loss where the arguments are not."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs * torch.ones(4), targets)


def test_a_tensor_that_is_made_on_the_cpu_is_told_before_the_run() -> None:
    with pytest.raises(TaskError, match=r"loss\(\) .*Expected all tensors to be on the same device") as caught:
        hosted("mlp", GPU, MakesOnCpu("mlp")).rehearse()
    assert "device=x.device" in caught.value.remedy


class Widened(OfKind):
    """Its batches have elements that share memory, as grey pictures do that are made coloured."""

    def transform(self, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, Any]:
        return x[:, :1].expand(-1, 10), y


def test_batches_that_cannot_be_put_into_pinned_memory_reach_the_gpu() -> None:
    here, there = (hosted("mlp", device, Widened("mlp")) for device in (GPU, CPU))
    here.rehearse()
    found, expected = trained(here, how()), trained(there, how())
    moved = distance(values(expected.before), values(expected.after))
    assert distance(values(found.after), values(expected.after)) < 1e-3 * moved


class Maps(OfKind):
    """A label for each of four places, as in segmentation; torch has no deterministic loss for that on a GPU."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs[:, :, None, None].expand(-1, -1, 2, 2), targets[:, None, None].expand(-1, 2, 2))


@pytest.mark.parametrize("kind", ["pooled", "maps"])
def test_a_model_without_deterministic_algorithms_trains_all_the_same(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, torch refuses its operation, also in the middle of a training; then it is allowed, once and for all."""
    task = OfKind(kind) if kind == "pooled" else Maps("mlp")
    here = hosted(kind, GPU, task)
    there = hosted(kind, CPU, task)

    def work() -> list[Any]:
        here.rehearse()
        return [trained(here, how(), client) for client in (0, 1)]

    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="does not have a deterministic"):
        results = work()
    (told,) = [record.getMessage() for record in caplog.records if "deterministic" in record.getMessage()]
    assert "an operation of this model deterministically on a GPU" in told
    for client, found in enumerate(results):
        expected = trained(there, how(), client)
        moved = distance(values(expected.before), values(expected.after))
        assert distance(values(found.after), values(expected.after)) < 1e-3 * moved


def test_the_loss_of_many_steps_is_read_in_the_order_of_the_steps() -> None:
    """More steps than losses are left on the GPU; the mean is that of reading each at once."""
    here = clients("mlp", "sgd", GPU)
    each: list[tuple[float, int]] = []
    whole = here.task.loss

    def noted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = whole(outputs, targets)
        if outputs.requires_grad:
            each.append((found.item(), len(targets)))
        return found

    here.task.loss = noted  # type: ignore[method-assign]
    learned = trained(here, how(epochs=30))
    assert len(each) == 150 > 2 * MOST_LOSSES
    total = 0.0
    for loss, samples in each:
        total += loss * samples
    assert learned.loss == total / (30 * 18)


def test_the_gpu_is_described_and_chosen() -> None:
    name, memory = described(GPU)
    assert name.startswith("cuda:0 (")
    assert memory == torch.cuda.get_device_properties(GPU).total_memory
    assert device_of("auto") == device_of("cuda") == GPU
    assert device_of(f"auto:{torch.cuda.device_count()}") == GPU
    with pytest.raises(ConfigError, match="numbered from 0"):
        device_of(f"cuda:{torch.cuda.device_count()}")
