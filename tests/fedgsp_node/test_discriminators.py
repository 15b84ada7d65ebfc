"""Discriminators against plain torch modules with autograd, one network at a time, and against known distances."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.messages import DiscriminatorSettings, FailureCode
from fedgsp.seeds import derive, stream
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp_node.discriminators import Encoded, fresh, judge, logits, sizes, split, step, tensors
from fedgsp_node.training.control import Control, StoppedError

SETTINGS = DiscriminatorSettings(samples=20, steps=4, batch_size=8, learning_rate=0.3, seed=7)
SHARED = dataclasses.replace(SETTINGS, shared=True)
#: Client 2 with others on both sides of it, and a shared network in which it is neither first nor last.
STACKS = [(SETTINGS, (5, 0, 3)), (SHARED, (4, 0, 2, 3))]


class Plain(nn.Module):
    """One network of a stack, as section 5.1 writes it."""

    def __init__(self, weights: Weights, network: int) -> None:
        super().__init__()
        state = {name: torch.from_numpy(array[network].copy()) for name, array in weights.arrays.items()}
        hidden, features = state["features.weight"].shape
        self.classes = state["labels.weight"].shape[1]
        self.features = nn.Linear(features, hidden)
        self.labels = nn.Linear(self.classes, hidden)
        self.output = nn.Linear(hidden, len(state["output.bias"]))
        self.load_state_dict(state)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        label = nn.functional.one_hot(y, self.classes) * (self.classes / (self.classes - 1) ** 0.5)
        output: torch.Tensor = self.output(torch.relu(self.features(x) + 2 * self.labels(label)))
        return output


def some_samples(count: int = 50, features: int = 6, classes: int = 3, seed: int = 0) -> Encoded:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((count, features)), rng.integers(0, classes, count)
    return Encoded(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), classes)


def different(networks: int, outputs: int, samples: Encoded) -> Weights:
    """Networks that are not alike, as they are after some exchanges."""
    weights = fresh(1, networks, outputs, samples.x.shape[1], samples.classes)
    weights.buffer.view(np.float32)[:] += np.random.default_rng(2).normal(0, 0.1, weights.buffer.nbytes // 4)
    return weights


def rows_of(samples: Encoded, client: int, settings: DiscriminatorSettings = SETTINGS) -> tuple[Any, Any]:
    return split(
        samples.y.numpy(), settings.samples, settings.fold, stream(settings.seed, "discriminator-split", client)
    )


def stepped(weights: Weights, part: Encoded, client: int, others: tuple[int, ...], **changes: Any) -> Weights:
    exchange = changes.pop("exchange", 0)
    after = weights.copy()
    step(after, part, client, others, dataclasses.replace(SETTINGS, **changes), exchange, Control())
    return after


# The networks


@pytest.mark.parametrize(
    ("features", "labels", "parameters", "products"),
    [
        (784, 10, 159_401, 159_000),
        (512, 10, 105_001, 104_600),
        (512, 20, 107_001, 106_600),
    ],
)
def test_a_network_is_as_large_as_the_paper_says(features: int, labels: int, parameters: int, products: int) -> None:
    specs = tensors(1, 1, features, labels)
    assert sum(math.prod(spec.shape) for spec in specs) == parameters
    assert sum(math.prod(spec.shape) for spec in specs if spec.name.endswith("weight")) == products


def test_the_forward_pass_is_that_of_the_worked_example() -> None:
    arrays = {
        "features.weight": np.eye(2)[None],
        "features.bias": np.zeros((1, 2)),
        "labels.weight": np.array([[[0.5, -0.5], [0, 1]]]),
        "labels.bias": np.array([[0.1, 0]]),
        "output.weight": np.array([[[1, -1]]]),
        "output.bias": np.array([[0.05]]),
    }
    weights = Weights.of(arrays, tensors(1, 1, 2, 2, hidden=2))
    outputs = logits(weights, torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    assert outputs.shape == (1, 2, 1)
    assert outputs.flatten().tolist() == pytest.approx([1.25, -5.95], abs=1e-6)


@pytest.mark.parametrize(("networks", "outputs"), [(3, 1), (1, 4)])
def test_outputs_are_those_of_plain_modules(networks: int, outputs: int) -> None:
    samples = some_samples()
    weights = different(networks, outputs, samples)
    expected = torch.stack([Plain(weights, network)(samples.x, samples.y) for network in range(networks)])
    torch.testing.assert_close(logits(weights, samples.x, samples.y), expected.detach(), atol=1e-5, rtol=1e-5)


def test_fresh_networks_are_alike_and_as_torch_draws_dense_layers() -> None:
    torch.manual_seed(derive(3, "discriminator"))
    drawn = [nn.Linear(6, 200), nn.Linear(4, 200), nn.Linear(200, 2)]
    arrays = list(fresh(3, 5, 2, 6, 4).arrays.values())
    for tensor, array in zip((value for layer in drawn for value in layer.parameters()), arrays, strict=True):
        for network in range(5):
            assert np.array_equal(array[network], tensor.detach().numpy())


def test_fresh_networks_depend_on_the_seed_alone_and_leave_torch_its_own_draws() -> None:
    torch.manual_seed(1)
    first = fresh(3, 2, 1, 6, 4)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == after
    assert fresh(3, 2, 1, 6, 4).digest == first.digest
    assert fresh(4, 2, 1, 6, 4).digest != first.digest


# Training


@pytest.mark.parametrize(("settings", "others"), STACKS)
@pytest.mark.parametrize("batch_size", [1, 3, 8, 64])  # 3 is also the number of pairs
def test_steps_are_those_of_plain_modules_trained_one_at_a_time(
    settings: DiscriminatorSettings, others: tuple[int, ...], batch_size: int
) -> None:
    samples = some_samples()
    settings = dataclasses.replace(settings, batch_size=batch_size)
    weights = different(*sizes(2, others, settings.shared), samples)
    plain = [Plain(weights, network) for network in range(len(weights.arrays["output.bias"]))]
    before = weights.copy()
    step(weights, samples, 2, others, settings, 5, Control())

    rng = stream(settings.seed, "discriminator-batches", 5, 2)
    rows, _ = rows_of(samples, 2)
    batches = [rng.choice(rows, min(batch_size, 20), replace=False) for _ in range(settings.steps)]
    for network, module in enumerate(plain):
        optimiser = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
        for batch in batches:
            outputs = module(samples.x[batch], samples.y[batch])
            if settings.shared:
                loss = nn.functional.cross_entropy(outputs, torch.full((len(batch),), others.index(2)))
            else:
                side = 0.0 if others[network] > 2 else 1.0
                loss = nn.functional.binary_cross_entropy_with_logits(outputs, torch.full((len(batch), 1), side))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(weights.arrays[name][network], value.numpy(), atol=1e-5, rtol=1e-5)
            assert not np.allclose(before.arrays[name][network], value.numpy(), atol=1e-4)


def test_a_task_that_sets_another_dtype_for_its_own_tensors_changes_nothing() -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            trained = [stepped(different(3, 1, some_samples()), some_samples(), 2, (5, 0, 3))]
            trained.append(stepped(different(1, 4, some_samples()), some_samples(), 2, (4, 0, 2, 3), shared=True))
        finally:
            torch.set_default_dtype(torch.float32)
        found.append([weights.digest for weights in trained])
    assert found[0] == found[1]


def test_networks_trained_at_once_are_those_trained_alone() -> None:
    samples, others = some_samples(), (5, 0, 3)
    weights = different(3, 1, samples)
    together = stepped(weights, samples, 2, others)
    for network, other in enumerate(others):
        one = {name: array[network : network + 1] for name, array in weights.arrays.items()}
        alone = stepped(Weights.of(one, tensors(1, 1, 6, 3)), samples, 2, (other,))
        for name, array in alone.arrays.items():
            np.testing.assert_allclose(together.arrays[name][network], array[0], atol=1e-6)


def test_training_repeats_itself_and_draws_other_batches_in_another_exchange() -> None:
    samples = some_samples()
    weights = fresh(1, 2, 1, 6, 3)
    first = stepped(weights, samples, 2, (0, 3))
    torch.manual_seed(5)
    assert stepped(weights, samples, 2, (0, 3)).digest == first.digest
    assert stepped(weights, samples, 2, (0, 3), exchange=1).digest != first.digest
    assert stepped(weights, samples, 2, (0, 3), seed=8).digest != first.digest


def test_the_validation_part_is_never_trained_on() -> None:
    samples = some_samples()
    _, validation = rows_of(samples, 2)
    samples.x[validation] = math.nan
    weights = fresh(1, 2, 1, 6, 3)
    for exchange in range(20):
        weights = stepped(weights, samples, 2, (0, 3), exchange=exchange)
    assert all(np.isfinite(array).all() for array in weights.arrays.values())


@pytest.mark.parametrize(("settings", "others"), STACKS)
def test_training_that_diverges_is_told(settings: DiscriminatorSettings, others: tuple[int, ...]) -> None:
    samples = some_samples()
    weights = fresh(1, *sizes(2, others, settings.shared), 6, 3)
    weights.buffer.view(np.float32)[:] *= 1e30
    with pytest.raises(WeightsError) as caught:
        step(weights, samples, 2, others, settings, 0, Control())
    assert caught.value.failure.code == FailureCode.NOT_FINITE


def test_training_and_judging_move_a_counter_and_stop_when_asked() -> None:
    samples = some_samples(600)
    weights, control = fresh(1, 1, 1, 6, 3), Control()
    step(weights, samples, 2, (0,), SETTINGS, 0, control)
    assert control.mark == SETTINGS.steps
    judge(weights, samples, 2, (0,), SETTINGS, control)
    assert control.mark == SETTINGS.steps + 3
    control.stop.set()
    with pytest.raises(StoppedError):
        step(weights, samples, 2, (0,), SETTINGS, 0, control)
    with pytest.raises(StoppedError):
        judge(weights, samples, 2, (0,), SETTINGS, control)


# Judging


def test_a_network_of_a_pair_is_right_below_zero_for_the_smaller_client() -> None:
    samples, others = some_samples(700), (5, 0, 3)
    weights = different(3, 1, samples)
    outputs = logits(weights, samples.x, samples.y)[:, :, 0]
    bias: Any = weights.arrays["output.bias"]
    bias -= np.array([[outputs[p].quantile(0.2 + 0.2 * p)] for p in range(3)], np.float32)
    _, rows = rows_of(samples, 2)
    above = [int((Plain(weights, p)(samples.x[rows], samples.y[rows]) >= 0).sum()) for p in range(3)]
    assert above == pytest.approx([544, 408, 272], abs=40)
    assert judge(weights, samples, 2, others, SETTINGS, Control()) == (680 - above[0], above[1], 680 - above[2])


def test_a_shared_network_is_right_about_a_pair_where_the_clients_own_output_is_larger() -> None:
    samples, others = some_samples(700), (4, 0, 2, 3)
    weights = different(1, 4, samples)
    _, rows = rows_of(samples, 2)
    outputs = Plain(weights, 0)(samples.x[rows], samples.y[rows])
    expected = tuple(int((outputs[:, 2] > outputs[:, place]).sum()) for place in range(4))
    assert judge(weights, samples, 2, others, SHARED, Control()) == expected
    assert len({0, 680, *expected}) == 5


@pytest.mark.parametrize(
    ("settings", "others", "expected"), [(SETTINGS, (5, 0, 3), (0, 30, 0)), (SHARED, (4, 0, 2, 3), (0, 0, 0, 30))]
)
def test_a_tie_goes_to_the_larger_client_of_a_pair_and_to_the_earlier_of_a_shared_network(
    settings: DiscriminatorSettings, others: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    weights = fresh(1, *sizes(2, others, settings.shared), 6, 3)
    weights.buffer[:] = 0
    weights.buffer.flags.writeable = False
    assert judge(weights, some_samples(), 2, others, settings, Control()) == expected


# Orders that cannot be carried out


@pytest.mark.parametrize(
    ("others", "shared"),
    [((), False), ((2, 3), False), ((3, 3), False), ((), True), ((2,), True), ((0, 3), True), ((2, 0, 0), True)],
)
def test_clients_that_cannot_be_told_apart_are_refused(others: tuple[int, ...], shared: bool) -> None:
    with pytest.raises(ValueError, match="client 2 cannot train"):
        sizes(2, others, shared)


@pytest.mark.parametrize("changes", [{"samples": 0}, {"samples": 50}, {"samples": 51}, {"batch_size": 0}])
def test_bad_sizes_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"cannot be divided|is below 1"):
        stepped(fresh(1, 1, 1, 6, 3), some_samples(), 2, (0,), **changes)


def test_weights_that_cannot_be_written_are_not_silently_left_as_they_were() -> None:
    weights = fresh(1, 1, 1, 6, 3)
    weights.buffer.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        step(weights, some_samples(), 2, (0,), SETTINGS, 0, Control())


@pytest.mark.parametrize("shape", [(2, 1, 6, 3), (1, 2, 6, 3), (1, 1, 5, 3), (1, 1, 6, 4)])
def test_networks_of_other_shapes_are_refused(shape: tuple[int, int, int, int]) -> None:
    weights, samples = fresh(1, *shape), some_samples()
    with pytest.raises(WeightsError, match="stack of discriminators"):
        step(weights, samples, 2, (0,), SETTINGS, 0, Control())
    with pytest.raises(WeightsError, match="stack of discriminators"):
        judge(weights, samples, 2, (0,), SETTINGS, Control())


# Distances


def distances(parts: Sequence[Encoded], settings: DiscriminatorSettings, exchanges: int) -> np.ndarray:
    """The matrix that a server reads from networks that it averages over their clients."""
    everyone = range(len(parts))
    found = np.zeros((len(parts), len(parts)))
    for members in [tuple(everyone)] if settings.shared else list(itertools.combinations(everyone, 2)):
        lists = {me: members if settings.shared else tuple(set(members) - {me}) for me in members}
        networks, outputs = sizes(members[0], lists[members[0]], settings.shared)
        weights = fresh(settings.seed, networks, outputs, parts[0].x.shape[1], parts[0].classes)
        for exchange in range(exchanges):
            trained = [weights.copy() for _ in members]
            for own, me in zip(trained, members, strict=True):
                step(own, parts[me], me, lists[me], settings, exchange, Control())
            means = {
                name: np.mean([np.asarray(own.arrays[name], np.float32) for own in trained], axis=0)
                for name in weights.arrays
            }
            weights = Weights.of(means, weights.tensors)
        for me in members:
            right = judge(weights, parts[me], me, lists[me], settings, Control())
            for other, count in zip(lists[me], right, strict=True):
                if other != me:
                    found[me, other] = count / (len(parts[me]) - settings.samples)
    return found + found.T - 1


@pytest.mark.parametrize("shared", [False, True])
def test_estimates_are_near_the_distances_of_gaussian_blobs(shared: bool) -> None:
    parts = []
    for client, centre in enumerate((0.0, 2.0, 0.0)):
        samples = some_samples(2500, features=5, seed=client)
        samples.x[:, 1] += centre
        parts.append(samples)
    settings = DiscriminatorSettings(500, 1, 64, 0.03, seed=3, shared=shared)
    found = distances(parts, settings, exchanges=150)
    truth = 2 * NormalDist().cdf(1.0) - 1  # 0.683
    assert found[[0, 1], [1, 2]] == pytest.approx([truth, truth], abs=0.05)
    assert found[0, 2] == pytest.approx(0, abs=0.05)
    assert np.array_equal(found, found.T)


@pytest.mark.parametrize("shared", [False, True])
def test_clients_that_differ_in_the_meaning_of_their_labels_alone_are_told_apart(shared: bool) -> None:
    samples = some_samples(900, features=3)
    samples.x[torch.arange(900), samples.y] += 5
    renamed = dataclasses.replace(samples, y=(samples.y + 1) % 3)
    settings = DiscriminatorSettings(300, 1, 32, 0.1, seed=3, shared=shared)
    found = distances([samples, renamed, samples], settings, exchanges=100)
    assert found[0, 1] > 0.9
    assert found[1, 2] > 0.9
    assert abs(found[0, 2]) < 0.15
