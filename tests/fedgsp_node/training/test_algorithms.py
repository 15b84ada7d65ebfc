"""What holds for every training algorithm, each beside its plain form, and the published values of the toy problem."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.settings.fields import values_of
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import FedProxOptions
from fedgsp_node.model.torch_weights import weights_of
from fedgsp_node.training import factored
from fedgsp_node.training.base import LocalWork, Result
from fedgsp_node.training.control import Control, StoppedError
from fedgsp_node.training.evaluation import evaluate
from tests.support import plain_training
from tests.support.local_work import MODELS, CrossEntropy, local_work, mlp, norm_and_dropout, samples, settings
from tests.support.toy_task import TARGETS, Toy
from tests.support.trainings import ADAPTING, ALGORITHMS, KEEPING, numbers

torch.set_num_threads(1)

#: Algorithm -> options unlike its defaults.
OPTIONS: dict[str, dict[str, float]] = {
    "sgd": {},
    "own-head": {},
    "fedprox": {"mu": 0.7},
    "fedmmd": {"lambda": 0.5},
    "fedfusion": {},
    "finetune": {"steps": 3},
    "per-fedavg": {"steps": 3},
    "pfedme": {"lambda": 3.0, "personal_steps": 2, "personal_rate": 0.2},
    "ditto": {"lambda": 0.6},
}


def other(make: Callable[[], nn.Module]) -> nn.Module:
    """A model of another time."""
    torch.manual_seed(7)
    return make().double()


def work_of(
    algorithm: str, make: Callable[[], nn.Module] = mlp, count: int = 23, control: Control | None = None
) -> tuple[LocalWork, Weights]:
    how = settings(2, 5, 0.05, algorithm, OPTIONS[algorithm])
    x, y = samples(count)
    personal = weights_of(other(make)) if algorithm in KEEPING else None
    torch.manual_seed(1)
    return local_work(make().double(), CrossEntropy(), (x.double(), y), how, control=control, personal=personal)


def assert_is(found: Weights, expected: nn.Module) -> None:
    state = expected.state_dict()
    for name, array in found.arrays.items():
        np.testing.assert_allclose(
            np.asarray(array, np.float64), state[name].numpy(), rtol=1e-9, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("large", [1, factored.LARGE], ids=["factored", "whole"])
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_does_what_its_plain_form_does(
    algorithm: str, make: Callable[[], nn.Module], large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factored, "LARGE", large)
    work, trained = work_of(algorithm, make)
    model, personal = copy.deepcopy(work.module), other(make)
    stay = dict(model.named_parameters())
    for name, parameter in personal.named_parameters():  # all models of a client share them
        if not parameter.requires_grad:
            parameter.data.copy_(stay[name])
    torch.manual_seed(2)
    result = ALGORITHMS[algorithm].train(work)
    torch.manual_seed(2)
    plain = plain_training.train(model, personal, work.samples.whole(), work.settings, values_of(work.options), seed=3)
    assert_is(trained, plain.model)
    assert result == pytest.approx((plain.loss, plain.steps), rel=1e-9)
    assert (work.personal is None) == (plain.personal is None)
    if work.personal is not None and plain.personal is not None:
        assert_is(work.personal, plain.personal)
        assert any((array != trained.arrays[name]).any() for name, array in work.personal.arrays.items())


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("count", [23, 4], ids=["many-batches", "one-batch"])
@pytest.mark.parametrize("algorithm", ADAPTING)
def test_adapting_takes_so_many_steps_however_few_batches_there_are(
    algorithm: str, count: int, make: Callable[[], nn.Module]
) -> None:
    work, bound_to = work_of(algorithm, make, count)
    model = copy.deepcopy(work.module)
    adapt = ALGORITHMS[algorithm].adapt
    assert adapt is not None
    torch.manual_seed(2)
    adapt(work)
    torch.manual_seed(2)
    plain_training.adapt(model, work.samples.whole(), work.settings, steps=3, seed=3)
    assert_is(bound_to, model)
    assert work.control.mark == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_came_keeps_its_bits_and_the_module_stays_bound(algorithm: str) -> None:
    work, trained = work_of(algorithm, norm_and_dropout)
    came = work.received.copy()
    ALGORITHMS[algorithm].train(work)
    assert np.array_equal(work.received.buffer, came.buffer)
    assert not np.array_equal(trained.buffer, came.buffer)
    for name, tensor in work.module.state_dict().items():
        assert np.shares_memory(tensor.numpy(), trained.arrays[name]), name
    assert all(parameter.grad is None for parameter in work.module.parameters())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_draws_give_the_same_bits(algorithm: str) -> None:
    found = []
    for _ in range(2):
        work, trained = work_of(algorithm, norm_and_dropout)
        torch.manual_seed(2)
        result = ALGORITHMS[algorithm].train(work)
        found.append((result, trained.digest, work.personal and work.personal.digest))
    assert found[0] == found[1]


class _StopsAt(Control):
    def __init__(self, mark: int) -> None:
        super().__init__()
        self.last = mark

    def tick(self) -> None:
        if self.mark + 1 == self.last:
            self.stop.set()
        super().tick()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_stops_after_any_step_and_leaves_the_module_bound(algorithm: str) -> None:
    whole, _ = work_of(algorithm)
    ALGORITHMS[algorithm].train(whole)
    last = whole.control.mark
    assert last >= 8  # five batches twice, of which one is too small for halves
    for mark in {1, last // 2, last // 2 + 1, last}:
        work, trained = work_of(algorithm, control=_StopsAt(mark))
        layers = [set(vars(layer)) for layer in work.module.modules()]
        with pytest.raises(StoppedError):
            ALGORITHMS[algorithm].train(work)
        assert work.control.mark == mark
        assert [set(vars(layer)) for layer in work.module.modules()] == layers
        for name, tensor in work.module.state_dict().items():
            assert np.shares_memory(tensor.numpy(), trained.arrays[name]), name


@pytest.mark.parametrize("algorithm", ADAPTING)
def test_adapting_stops_when_told_to(algorithm: str) -> None:
    work, _ = work_of(algorithm, control=_StopsAt(2))
    adapt = ALGORITHMS[algorithm].adapt
    assert adapt is not None
    with pytest.raises(StoppedError):
        adapt(work)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_client_with_one_sample_trains(algorithm: str) -> None:
    work, trained = work_of(algorithm, count=1)
    loss, steps = ALGORITHMS[algorithm].train(work)
    assert math.isfinite(loss)
    assert 1 <= steps <= 2
    changed = not np.array_equal(trained.buffer, work.received.buffer)
    assert changed == (algorithm != "per-fedavg")


def test_per_fedavg_leaves_a_model_alone_where_every_batch_is_too_small_for_halves() -> None:
    for count in (1, 3):
        work, trained = work_of("per-fedavg", norm_and_dropout, count)
        result = ALGORITHMS["per-fedavg"].train(work)
        assert np.array_equal(trained.buffer, work.received.buffer)
        loss_sum = evaluate(work.module, work.task, work.samples, Control()).loss_sum
        assert result == pytest.approx((loss_sum / count, 1))


def test_per_fedavg_counts_the_batches_that_it_halves() -> None:
    work, _ = work_of("per-fedavg")
    assert ALGORITHMS["per-fedavg"].train(work).steps == 8  # 5 5 5 5 3, twice
    work, _ = work_of("per-fedavg", count=24)
    assert ALGORITHMS["per-fedavg"].train(work).steps == 10


@pytest.mark.parametrize("make", MODELS)
def test_fedprox_without_pull_and_dittos_shared_model_have_the_bits_of_sgd(make: Callable[[], nn.Module]) -> None:
    digests = []
    for algorithm in ("sgd", "fedprox", "ditto"):
        work, trained = work_of(algorithm, make)
        work.options = FedProxOptions(0.0) if algorithm == "fedprox" else work.options
        torch.manual_seed(2)
        digests.append((ALGORITHMS[algorithm].train(work), trained.digest))
    assert digests[0] == digests[1] == digests[2]


def test_dittos_personal_model_has_an_order_of_its_own() -> None:
    seen: list[list[float]] = []

    class Watching(Toy):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            seen.append(targets.tolist())
            return super().loss(outputs, targets)

    task = Watching()
    data = torch.zeros(50, 1, dtype=torch.float64), torch.arange(50, dtype=torch.float64)
    how = settings(1, 50, algorithm="ditto")
    ALGORITHMS["ditto"].train(local_work(task.model(), task, data, how, personal=weights_of(task.model()))[0])
    first, second = seen
    assert sorted(first) == sorted(second)
    assert first != second


# -- the toy problem: loss 0.5 (w - c)^2, c = 0 and 4, w = 1, rate 0.1


def toy(
    algorithm: str, client: int, epochs: int = 1, count: int = 4, personal: float = 1.0, **options: float
) -> tuple[float, float, Result]:
    """The model, the personal model and the result after so many steps."""
    task = Toy()
    data = torch.zeros(count, 1, dtype=torch.float64), torch.full((count,), TARGETS[client], dtype=torch.float64)
    kept = weights_of(task.model())
    kept.arrays["w"][...] = personal
    how = settings(epochs, count, 0.1, algorithm, options)
    work, trained = local_work(task.model(), task, data, how, personal=kept)
    result = ALGORITHMS[algorithm].train(work)
    return trained.arrays["w"].item(), kept.arrays["w"].item(), result


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(("client", "w"), [(0, 0.81), (1, 1.57)])
def test_toy_fedavg_and_finetune(client: int, w: float) -> None:
    for algorithm in ("sgd", "finetune"):
        assert toy(algorithm, client, epochs=2)[0] == near(w)


@pytest.mark.parametrize(("client", "w"), [(0, 0.82), (1, 1.54)])
def test_toy_fedprox(client: int, w: float) -> None:
    found, _, result = toy("fedprox", client, epochs=2, mu=1)
    assert found == near(w)
    assert result.steps == near(1.9)


@pytest.mark.parametrize(("client", "epochs", "update"), [(0, 1, -0.1), (1, 3, 0.271)])
def test_toy_normalised_updates_of_fednova(client: int, epochs: int, update: float) -> None:
    w, _, result = toy("sgd", client, epochs)
    assert result.steps == epochs
    assert (w - 1) / result.steps == near(update)


@pytest.mark.parametrize(("client", "w"), [(0, 0.91), (1, 1.27)])
def test_toy_per_fedavg(client: int, w: float) -> None:
    assert toy("per-fedavg", client)[0] == near(w)


@pytest.mark.parametrize(("client", "w", "theta"), [(0, 0.966384, 0.66384), (1, 1.100848, 2.00848)])
def test_toy_pfedme(client: int, w: float, theta: float) -> None:
    found = toy("pfedme", client, personal=9.0, personal_steps=5, personal_rate=0.1, **{"lambda": 1})
    assert found[:2] == (near(w), near(theta))
    assert found[2].steps == 1


@pytest.mark.parametrize(("client", "w", "v"), [(0, 0.9, 1.7), (1, 1.3, 2.1)])
def test_toy_ditto(client: int, w: float, v: float) -> None:
    assert toy("ditto", client, personal=2.0, **{"lambda": 1})[:2] == (near(w), near(v))


def test_the_defaults_are_those_of_fedcollab() -> None:
    assert numbers("fedprox") == {"mu": 0.1}
    assert numbers("pfedme") == {"lambda": 1.0, "personal_steps": 5, "personal_rate": 0.1}
    assert numbers("ditto") == {"lambda": 1.0}
    assert (numbers("finetune"), numbers("per-fedavg")) == ({"steps": 2}, {"steps": 1})
