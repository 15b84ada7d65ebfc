"""FedMMD: the discrepancy and its gradient, and what the frozen stream must leave alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import OptimizerSettings
from fedgsp.settings.fields import values_of
from fedgsp.trainings import TRAININGS
from fedgsp_node.model.torch_weights import classifier
from fedgsp_node.optimizers import stepping
from fedgsp_node.training.fedmmd import FLOOR, VARIANCES, discrepancy
from fedgsp_node.training.frozen import Frozen
from fedgsp_node.training.steps import descent
from tests.support import plain_training
from tests.support.local_work import (
    MODELS,
    PRECISIONS,
    CrossEntropy,
    PartlyUnused,
    attention,
    convolutions,
    local_work,
    mlp,
    norm_and_dropout,
    samples,
    settings,
    whole_batch,
)
from tests.support.trainings import ALGORITHMS, numbers

torch.set_num_threads(1)


def rows(*values: tuple[float, ...] | float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(len(values), -1)


LINE = rows(0, 1), rows(0, 2)
PLANE = rows((1, 0), (0, 1), (2, 1)), rows((0.5, 0), (0, 1), (2, 2))


@pytest.mark.parametrize(
    ("pair", "variances", "expected"),
    [
        (LINE, (1,), 0.1967346701436834),
        (LINE, (1, 5), 0.24431596112570375),
        (LINE, VARIANCES, 3.3220977316630176),
        (PLANE, (1,), 0.14306491970433965),
        (PLANE, (0.1, 1, 10), 0.5376497012833052),
        (PLANE, VARIANCES, 2.8256181783101546),
        (PLANE[:1] * 2, VARIANCES, 0.0),
    ],
)
def test_the_discrepancy_of_small_batches(
    pair: tuple[torch.Tensor, torch.Tensor], variances: tuple[float, ...], expected: float
) -> None:
    assert discrepancy(*pair, variances).item() == pytest.approx(expected, abs=1e-14)
    assert discrepancy(pair[1], pair[0], variances).item() == pytest.approx(expected, abs=1e-14)


def test_the_gradient_of_the_discrepancy() -> None:
    received, trained = PLANE[0], PLANE[1].clone().requires_grad_()
    discrepancy(received, trained, (0.1, 1, 10)).backward()
    expected = rows((-0.48230552, -0.01060382), (-0.05534448, -0.00660556), (-0.00348504, 0.18994805))
    torch.testing.assert_close(trained.grad, expected, rtol=0, atol=5e-9)
    torch.autograd.gradcheck(lambda z: discrepancy(received, z, (0.1, 1, 10)), trained)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 40), st.integers(0, 10**6))
def test_the_discrepancy_has_means_over_all_pairs(n: int, m: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(n, d)), rng.normal(size=(m, d)) * rng.choice([1e-3, 1, 30])

    def mean(some: np.ndarray, others: np.ndarray) -> float:
        apart = ((some[:, None] - others) ** 2).sum(axis=-1)
        return float(sum(np.exp(-apart / (2 * variance)) for variance in VARIANCES).mean())

    expected = mean(u, u) + mean(v, v) - 2 * mean(u, v)
    found = discrepancy(torch.from_numpy(u), torch.from_numpy(v)).item()
    assert found == pytest.approx(expected, abs=1e-9)
    assert found >= -1e-12
    if n == m == 1:
        assert found == pytest.approx(38 - 2 * mean(u, v), abs=1e-9)


# -- one step: logits W x


def one_step(trained: list[list[float]]) -> tuple[float, float, torch.Tensor, torch.Tensor]:
    """The loss, a tenth of the discrepancy (variances 1 and 5), their gradient, and the weights after a step."""
    module = nn.Linear(2, 2, bias=False).double()
    module.weight.data = torch.eye(2, dtype=torch.float64)
    data = rows((1, 0), (0, 1), (1, 1)), torch.tensor([0, 1, 0])
    work, weights = local_work(module, CrossEntropy(), data, settings(1, 3, 0.1, "fedmmd"))
    weights.arrays["weight"][...] = trained
    before, frozen = torch.tensor(trained, dtype=torch.float64), Frozen(work)
    with frozen.stream():
        theirs = module(work.samples.whole()[0])
    parts: list[float] = []

    def penalty(outputs: torch.Tensor) -> torch.Tensor:
        part = 0.1 * discrepancy(theirs, outputs, (1, 5)).clamp(min=FLOOR)
        parts.append(part.item())
        return part

    with descent(work) as steps:
        steps.step(whole_batch(work), 0.1, penalty=penalty)
    after = torch.from_numpy(weights.arrays["weight"]).clone()
    return steps.loss, parts[0], (before - after) / 0.1, after


def gradients(trained: list[list[float]]) -> list[torch.Tensor]:
    """Those of the loss and of the discrepancy in W, each alone."""
    x, y = rows((1, 0), (0, 1), (1, 1)), torch.tensor([0, 1, 0])
    weight = torch.tensor(trained, dtype=torch.float64, requires_grad=True)
    logits = x @ weight.T
    parts = nn.functional.cross_entropy(logits, y), discrepancy(x, logits, (1, 5))
    return [torch.autograd.grad(part, weight, retain_graph=True)[0] for part in parts]


def test_one_step_where_the_models_differ() -> None:
    loss, part, gradient, after = one_step([[0.5, 0], [0, 1]])
    assert loss == pytest.approx(0.5871385519594787, abs=1e-14)
    assert part / 0.1 == pytest.approx(0.10480130312536895, abs=1e-14)
    assert loss + part == pytest.approx(0.5976186822720156, abs=1e-14)
    cross_entropy = rows((-0.33333333, -0.1178393), (0.33333333, 0.1178393))
    of_mmd = rows((-0.3976266, -0.29313861), (0, -0.05686057))
    for found, expected in zip(gradients([[0.5, 0], [0, 1]]), (cross_entropy, of_mmd), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=5.1e-9)
    torch.testing.assert_close(gradient, cross_entropy + 0.1 * of_mmd, rtol=0, atol=2e-8)
    torch.testing.assert_close(after, rows((0.5373096, 0.01471532), (-0.03333333, 0.98878468)), rtol=0, atol=1e-8)


def test_one_step_where_the_models_are_equal_has_the_gradient_of_the_loss_alone() -> None:
    loss, part, gradient, after = one_step([[1, 0], [0, 1]])
    assert loss + part == pytest.approx(0.43990018519879703, abs=1e-14)
    plain = nn.Linear(2, 2, bias=False).double()
    plain.weight.data = torch.eye(2, dtype=torch.float64)
    nn.functional.cross_entropy(plain(rows((1, 0), (0, 1), (1, 1))), torch.tensor([0, 1, 0])).backward()
    assert plain.weight.grad is not None
    assert torch.equal(after, plain.weight.data - 0.1 * plain.weight.grad)
    torch.testing.assert_close(gradient, plain.weight.grad)


# -- whole trainings


def trained(
    algorithm: str, make: Callable[[], nn.Module], count: int, precision: str, **options: object
) -> tuple[bytes, tuple[float, float]]:
    torch.manual_seed(1)
    how = settings(1, 5, 0.05, algorithm, options)  # type: ignore[arg-type]
    work, weights = local_work(make(), CrossEntropy(), samples(count), how)
    work.stepping = stepping(OptimizerSettings("auto", precision=precision), work.task)
    torch.manual_seed(2)
    result = ALGORITHMS[algorithm].train(work)
    return weights.copy().digest, result


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("of", ["logits", "features"])
@pytest.mark.parametrize("make", [mlp, convolutions, attention])
def test_the_first_step_has_the_bits_of_sgd_and_the_second_has_not(
    make: Callable[[], nn.Module], of: str, precision: str
) -> None:
    strong = {"lambda": 50.0, "of": of}
    for count, alike in ((5, True), (10, False)):
        found = trained("fedmmd", make, count, precision, **strong)
        assert (found[0] == trained("sgd", make, count, precision)[0]) == alike


def test_without_strength_it_has_the_bits_of_sgd_also_with_dropout_and_batch_norm() -> None:
    found = trained("fedmmd", norm_and_dropout, 23, "", **{"lambda": 0.0})
    assert found == trained("sgd", norm_and_dropout, 23, "")


@pytest.mark.parametrize("make", MODELS)
def test_features_are_compared_as_in_the_plain_form(make: Callable[[], nn.Module]) -> None:
    how = settings(2, 5, 0.05, "fedmmd", {"lambda": 0.5, "of": "features"})  # type: ignore[dict-item]
    x, y = samples(23)
    torch.manual_seed(1)
    work, weights = local_work(make().double(), CrossEntropy(), (x.double(), y), how)
    model, unused = copy.deepcopy(work.module), nn.Identity()
    if make is PartlyUnused:
        with pytest.raises(TaskError, match="does not call its last dense layer"):
            ALGORITHMS["fedmmd"].train(work)
        return
    torch.manual_seed(2)
    result = ALGORITHMS["fedmmd"].train(work)
    torch.manual_seed(2)
    plain = plain_training.train(model, unused, work.samples.whole(), how, values_of(work.options), seed=3)
    assert result == pytest.approx((plain.loss, plain.steps), rel=1e-9)
    state = plain.model.state_dict()
    for name, array in weights.arrays.items():
        np.testing.assert_allclose(
            np.asarray(array, np.float64), state[name].numpy(), rtol=1e-9, atol=1e-12, err_msg=name
        )


class Augmented(nn.Module):
    """Adds noise to its inputs while it trains, and notes them."""

    augments = True

    def __init__(self) -> None:
        super().__init__()
        self.given: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append(x + torch.randn_like(x) if self.training else x)
        return self.given[-1]


def test_both_streams_see_the_same_augmented_inputs_and_training_draws_as_without_a_second_stream() -> None:
    seen = []
    for algorithm in ("sgd", "fedmmd"):
        augmented = Augmented()
        torch.manual_seed(1)
        module = nn.Sequential(augmented, nn.Linear(10, 4), nn.Dropout(0.5))
        work, _ = local_work(module, CrossEntropy(), samples(10), settings(1, 5, 0.05, algorithm))
        torch.manual_seed(2)
        ALGORITHMS[algorithm].train(work)
        seen.append(augmented.given)
    alone, (theirs, ours, theirs_again, ours_again) = seen
    assert torch.equal(theirs, ours)
    assert torch.equal(theirs_again, ours_again)
    assert torch.equal(torch.cat(alone), torch.cat([ours, ours_again]))


def test_a_model_whose_outputs_are_no_tensor_is_refused_in_words() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.layer(x)}

    work, _ = local_work(Named(), CrossEntropy(), samples(5), settings(1, 5, 0.05, "fedmmd"))
    with pytest.raises(TaskError, match="cannot compare a dict") as error:
        ALGORITHMS["fedmmd"].train(work)
    assert error.value.remedy == "give option of=features"


def test_features_need_a_dense_layer_in_the_head() -> None:
    work, _ = local_work(
        nn.Conv1d(1, 4, 3),
        CrossEntropy(),
        samples(5),
        settings(1, 5, 0.05, "fedmmd", {"of": "features"}),  # type: ignore[dict-item]
    )
    with pytest.raises(TaskError, match=r"the model's head has no nn\.Linear"):
        ALGORITHMS["fedmmd"].train(work)


def test_the_classifier_is_the_last_dense_layer_of_the_head() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2), nn.ReLU())
    assert classifier(model) is model[2]
    assert classifier(model, ("0.", "1.")) is model[1]
    assert classifier(model, ("3.",)) is None
    assert classifier(model[0]) is model[0]


def test_the_defaults_are_those_of_the_release() -> None:
    assert numbers("fedmmd") == {"lambda": 0.1, "of": "logits"}
    assert len(VARIANCES) == 19
    assert TRAININGS["fedmmd"].keeps_head is TRAININGS["fedmmd"].keeps_personal is False
