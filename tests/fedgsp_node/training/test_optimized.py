"""Steps by optimisers: the same bits as a plain loop of torch, in every training, and FedNova's normaliser."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp.optimizers import OPTIMIZERS
from fedgsp.schedules import plan
from fedgsp.tensors.weights import Weights
from fedgsp_node.model.torch_weights import weights_of
from fedgsp_node.optimizers import stepping
from fedgsp_node.training import factored
from fedgsp_node.training.base import LocalWork, Result
from fedgsp_node.training.control import Control, StoppedError
from tests.support.local_work import MODELS, CrossEntropy, local_work, mlp, norm_and_dropout, samples, settings
from tests.support.reference import as_numpy
from tests.support.trainings import ALGORITHMS, KEEPING

torch.set_num_threads(1)

NONE: Mapping[str, str] = MappingProxyType({})
#: Trainings that take any optimiser.
ANY = [name for name in ALGORITHMS if name not in ("pfedme", "per-fedavg")]


def work_of(
    optimizer: OptimizerSettings,
    make: Callable[[], nn.Module] = mlp,
    how: TrainingSettings | None = None,
    count: int = 23,
    control: Control | None = None,
    task: CrossEntropy | None = None,
) -> tuple[LocalWork, Weights]:
    how = dataclasses.replace(how or settings(2, 5, 0.05), optimizer=optimizer)
    torch.manual_seed(1)
    module = make()
    personal = weights_of(module) if how.algorithm in KEEPING else None
    work, trained = local_work(module, task or CrossEntropy(), samples(count), how, control=control, personal=personal)
    work.stepping = stepping(optimizer, work.task)
    return work, trained


def plain_loop(
    module: nn.Module,
    work: LocalWork,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    clip: float = 0.0,
    accumulate: int = 1,
    factor: Callable[[int, int], float] = lambda *_: 1.0,
    pull: float = 0.0,
    precision: torch.dtype | None = None,
) -> None:
    """As anybody writes it in torch; `pull` adds pull/2 ||w - start||^2 to the loss."""
    module.train()
    x, y = work.samples.whole()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained]
    rng = np.random.default_rng(3)
    batches: list[torch.Tensor] = []
    for _ in range(work.settings.local_epochs):
        rows = list(torch.from_numpy(rng.permutation(len(work.samples))).split(work.settings.batch_size))
        batches += rows
    optimizer = make(trained)
    groups = [batches[begin : begin + accumulate] for begin in range(0, len(batches), accumulate)]
    for place, together in enumerate(groups):
        optimizer.zero_grad()
        count = sum(map(len, together))
        for rows_ in together:
            with torch.autocast("cpu", precision) if precision else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(module(x[rows_]), y[rows_])
            (loss * len(rows_) / count if accumulate > 1 else loss).backward()
        if pull:
            for parameter, anchor in zip(trained, start, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad += pull * (parameter.detach() - anchor)
        if clip:
            nn.utils.clip_grad_norm_(trained, clip)
        for group in optimizer.param_groups:
            group["lr"] = work.settings.learning_rate * factor(place, len(groups))
        optimizer.step()


def assert_close(trained: Weights, module: nn.Module, exact: bool) -> None:
    state = module.state_dict()
    for name, array in trained.arrays.items():
        if exact:
            assert array.tobytes() == as_numpy(state[name]).tobytes(), name
        else:
            np.testing.assert_allclose(
                floats(array), floats(as_numpy(state[name])), rtol=2e-4, atol=2e-6, err_msg=name
            )


def floats(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)


def by_part(name: str, options: Mapping[str, str] = NONE) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    part = OPTIMIZERS[name]
    return lambda parameters: part.load()(parameters, 0.05, part.read(options))


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.built_in if name != "auto"])
def test_every_optimiser_has_the_bits_of_a_loop_in_torch(name: str, make: Callable[[], nn.Module]) -> None:
    work, trained = work_of(OptimizerSettings(name, clip_norm=1e9), make)  # never shortened, but never the fast path
    module = copy.deepcopy(work.module)
    torch.manual_seed(2)
    result = ALGORITHMS["sgd"].train(work)
    torch.manual_seed(2)
    plain_loop(module, work, by_part(name), clip=1e9)
    assert_close(trained, module, exact=True)
    assert result.steps == 10
    assert work.control.mark == 10
    assert all(parameter.grad is None for parameter in work.module.parameters())


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.built_in if name != "auto"])
def test_large_parameters_have_the_bits_of_torchs_fused_steps(
    name: str, make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factored, "LARGE", 1)
    work, trained = work_of(OptimizerSettings(name, clip_norm=1e9), make)
    module = copy.deepcopy(work.module)
    torch.manual_seed(2)
    ALGORITHMS["sgd"].train(work)
    torch.manual_seed(2)
    plain_loop(module, work, by_part(name), clip=1e9)
    assert_close(trained, module, exact=True)
    assert all(
        parameter.grad is None and not parameter._post_accumulate_grad_hooks for parameter in work.module.parameters()
    )


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_large_gradients_are_gathered_over_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factored, "LARGE", 1)
    work, trained = work_of(OptimizerSettings(name, accumulate=3))
    module = copy.deepcopy(work.module)
    ALGORITHMS["sgd"].train(work)
    plain_loop(module, work, by_part(name), accumulate=3)
    assert_close(trained, module, exact=False)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 100])
@pytest.mark.parametrize("schedule", ["", "cosine"])
def test_clipping_accumulation_and_schedules_are_those_of_a_loop(
    name: str, clip: float, accumulate: int, schedule: str
) -> None:
    options = {"warmup": "2"} if schedule else {}
    found = OptimizerSettings(name, {}, schedule, options, clip, accumulate)
    work, trained = work_of(found)
    module = copy.deepcopy(work.module)
    result = ALGORITHMS["sgd"].train(work)
    factor = plan(schedule, options).factor if schedule else lambda *_: 1.0
    plain_loop(module, work, by_part(name), clip, accumulate, factor)
    assert_close(trained, module, exact=False)
    steps = -(-10 // accumulate)
    expected = sum(factor(place, steps) for place in range(steps)) if name == "sgd" else steps
    assert result.steps == pytest.approx(expected)


def test_accumulated_batches_are_one_large_batch() -> None:
    digests = []
    for size, accumulate in ((12, 1), (4, 3), (3, 4)):
        work, trained = work_of(
            OptimizerSettings("adam", accumulate=accumulate), how=settings(2, size, 0.05), count=24
        )
        ALGORITHMS["sgd"].train(work)
        digests.append(trained)
    for other in digests[1:]:
        for name, array in other.arrays.items():
            np.testing.assert_allclose(floats(array), floats(digests[0].arrays[name]), rtol=1e-4, atol=1e-6)


def test_fedprox_with_adam_has_the_pull_in_the_gradient() -> None:
    work, trained = work_of(OptimizerSettings("adam"), how=settings(2, 5, 0.05, "fedprox", {"mu": 0.7}))
    module = copy.deepcopy(work.module)
    ALGORITHMS["fedprox"].train(work)
    plain_loop(module, work, by_part("adam"), pull=0.7)
    assert_close(trained, module, exact=False)


@pytest.mark.parametrize("algorithm", ANY)
def test_trainings_with_sgd_by_the_optimiser_are_those_with_plain_sgd(algorithm: str) -> None:
    how = settings(2, 5, 0.05, algorithm)
    work, fast = work_of(OptimizerSettings("sgd"), norm_and_dropout, how)
    torch.manual_seed(2)
    result = ALGORITHMS[algorithm].train(work)
    personal = work.personal
    work, slow = work_of(OptimizerSettings("sgd", clip_norm=1e9), norm_and_dropout, how)
    torch.manual_seed(2)
    assert ALGORITHMS[algorithm].train(work) == pytest.approx(result)
    pairs = [(fast, slow)] + ([(personal, work.personal)] if personal is not None and work.personal else [])
    for one, other in pairs:
        for name, array in one.arrays.items():
            np.testing.assert_allclose(floats(array), floats(other.arrays[name]), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("algorithm", ANY)
def test_what_came_stays_and_the_module_stays_bound(algorithm: str) -> None:
    work, trained = work_of(OptimizerSettings("adamw"), norm_and_dropout, settings(2, 5, 0.05, algorithm))
    came = work.received.copy()
    ALGORITHMS[algorithm].train(work)
    assert np.array_equal(work.received.buffer, came.buffer)
    for name, tensor in work.module.state_dict().items():
        assert np.shares_memory(tensor.numpy(), trained.arrays[name]), name
    adapt = ALGORITHMS[algorithm].adapt
    if adapt is not None:
        before = trained.copy()
        adapt(work)
        assert trained.copy().digest != before.digest


def test_ditto_gives_each_of_its_models_an_optimiser() -> None:
    how = settings(2, 5, 0.05, "ditto", {"lambda": 0.0})
    work, _ = work_of(OptimizerSettings("adam"), how=how)
    module = copy.deepcopy(work.module)
    ALGORITHMS["ditto"].train(work)
    again = dataclasses.replace(work, rng=np.random.default_rng(3))
    again.rng.permutation(23), again.rng.permutation(23)  # the epochs of the shared model
    orders = [again.rng.permutation(23) for _ in range(2)]
    optimizer = by_part("adam")(list(module.parameters()))
    x, y = work.samples.whole()
    for order in orders:
        for rows in torch.from_numpy(order).split(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    assert work.personal is not None
    assert_close(work.personal, module, exact=True)


class _Stops(Control):
    def tick(self) -> None:
        super().tick()
        if self.mark == 3:
            raise StoppedError


def test_a_stopped_training_leaves_no_gradient_and_takes_no_half_step() -> None:
    work, trained = work_of(OptimizerSettings("adam", accumulate=100), control=_Stops())
    before = trained.copy()
    with pytest.raises(StoppedError):
        ALGORITHMS["sgd"].train(work)
    assert all(parameter.grad is None for parameter in work.module.parameters())
    assert trained.copy().digest == before.digest


class _Slope(nn.Module):
    """Its loss is the sum of its weights, so that every gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.sum() + 0 * x.sum()


class _SlopeTask(CrossEntropy):
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs


@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    dampening=st.sampled_from([0.0, 0.3]),
    nesterov=st.booleans(),
    mu=st.sampled_from([0.0, 0.8]),
    schedule=st.sampled_from(["", "cosine", "linear"]),
    accumulate=st.integers(1, 3),
    count=st.integers(1, 30),
)
def test_fednovas_normaliser_is_the_update_under_a_gradient_of_one(**draw: Any) -> None:
    nesterov = draw["nesterov"] and draw["momentum"] > 0
    options = {
        "momentum": str(draw["momentum"]),
        "dampening": "0" if nesterov else str(draw["dampening"]),
        "nesterov": str(nesterov),
    }
    found = OptimizerSettings("sgd", options, draw["schedule"], {}, 0.0, draw["accumulate"])
    how = settings(2, 5, 0.05, "fedprox", {"mu": draw["mu"]})
    work, trained = work_of(found, lambda: _Slope().double(), how, draw["count"], task=_SlopeTask())
    result: Result = ALGORITHMS["fedprox"].train(work)
    assert floats(trained.arrays["weight"]) / -0.05 == pytest.approx(np.full(3, result.steps), rel=1e-9)


def test_the_step_sizes_of_the_tasks_groups_keep_their_ratio() -> None:
    class Two(_SlopeTask):
        def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
            groups: list[dict[str, Any]] = [
                {"params": parameters[:1]},
                {"params": parameters[1:], "lr": 3 * learning_rate},
            ]
            return torch.optim.SGD(groups, lr=learning_rate)

    class Pair(_Slope):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight.sum() + self.other.sum() + 0 * x.sum()

    work, trained = work_of(OptimizerSettings("auto", schedule="linear"), Pair, settings(1, 5, 0.1), 20, task=Two())
    ALGORITHMS["sgd"].train(work)
    moved = 0.1 * (1 + 0.75 + 0.5 + 0.25)
    np.testing.assert_allclose(floats(trained.arrays["weight"]), -moved, rtol=1e-6)
    np.testing.assert_allclose(floats(trained.arrays["other"]), -3 * moved, rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("make", [mlp, norm_and_dropout])
def test_bfloat16_is_torchs_autocast(name: str, make: Callable[[], nn.Module]) -> None:
    work, trained = work_of(OptimizerSettings(name, precision="bfloat16"), make)
    module = copy.deepcopy(work.module)
    torch.manual_seed(2)
    ALGORITHMS["sgd"].train(work)
    torch.manual_seed(2)
    plain_loop(module, work, by_part(name), precision=torch.bfloat16)
    assert_close(trained, module, exact=True)
    full, in_float32 = work_of(OptimizerSettings(name), make)
    torch.manual_seed(2)
    ALGORITHMS["sgd"].train(full)
    assert in_float32.digest != trained.copy().digest


def test_float16_is_scaled_and_leaves_out_steps_with_infinite_gradients() -> None:
    work, trained = work_of(OptimizerSettings("sgd", precision="float16", clip_norm=1.0))
    result = ALGORITHMS["sgd"].train(work)
    full, expected = work_of(OptimizerSettings("sgd", clip_norm=1.0))
    ALGORITHMS["sgd"].train(full)
    for name, array in trained.arrays.items():
        np.testing.assert_allclose(floats(array), floats(expected.arrays[name]), atol=2e-3)
    assert result.steps == 10

    class Steep(CrossEntropy):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 1000 * super().loss(outputs, targets)  # times the first scale beyond the largest float16

    work, trained = work_of(OptimizerSettings("sgd", precision="float16", clip_norm=1.0), task=Steep())
    result = ALGORITHMS["sgd"].train(work)
    assert 0 < result.steps < 10
    assert all(np.isfinite(floats(array)).all() for array in trained.arrays.values())


@pytest.mark.parametrize("algorithm", ANY)
def test_every_training_goes_with_bfloat16(algorithm: str) -> None:
    work, trained = work_of(OptimizerSettings("adam", precision="bfloat16"), mlp, settings(2, 5, 0.01, algorithm))
    loss, _ = ALGORITHMS[algorithm].train(work)
    assert np.isfinite(loss)
    assert all(np.isfinite(floats(array)).all() for array in trained.arrays.values())


def test_sparse_gradients_are_refused_by_clipping_with_the_remedy() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.last = nn.EmbeddingBag(10, 8, sparse=True), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.bag((x.abs() * 3).long().clamp(max=9)))

    work, _ = work_of(OptimizerSettings("sgd", clip_norm=1.0), Bag)
    with pytest.raises(TaskError, match=r"sparse gradients, .*sparse=False, or train without --clip-norm"):
        ALGORITHMS["sgd"].train(work)
    work, _ = work_of(OptimizerSettings("sgd"), Bag)
    ALGORITHMS["sgd"].train(work)
