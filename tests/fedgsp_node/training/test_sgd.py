"""Local SGD against torch.optim.SGD and against the toy problem."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.messages import TrainingSettings
from fedgsp_node.training.control import Control, StoppedError
from fedgsp_node.training.steps import descend
from tests.support.local_work import MODELS, CrossEntropy, local_work, mlp, norm_and_dropout, samples, settings
from tests.support.reference import as_numpy
from tests.support.toy_task import SAMPLES, TARGETS, Toy

torch.set_num_threads(1)


def by_torch(module: nn.Module, x: torch.Tensor, y: torch.Tensor, how: TrainingSettings, seed: int) -> float:
    """The same by torch's own optimiser; the mean loss over the samples seen."""
    module.train()
    rng, losses = np.random.default_rng(seed), []
    optimiser = torch.optim.SGD((p for p in module.parameters() if p.requires_grad), lr=how.learning_rate)
    for _ in range(how.local_epochs):
        order = rng.permutation(len(x))
        for begin in range(0, len(x), how.batch_size):
            rows = torch.from_numpy(order[begin : begin + how.batch_size])
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            losses += [loss.item()] * len(rows)
    return sum(losses) / len(losses)


class DropsLast(CrossEntropy):
    drop_last = True


@pytest.mark.parametrize(
    ("task", "make", "count", "steps"),
    [
        (CrossEntropy, mlp, 21, 5),
        (DropsLast, mlp, 21, 4),
        (DropsLast, mlp, 23, 4),
        (DropsLast, mlp, 20, 4),
        (DropsLast, mlp, 3, 1),  # the only one stays
        (CrossEntropy, norm_and_dropout, 22, 5),
        (CrossEntropy, norm_and_dropout, 21, 4),  # batch norm takes no mean over a single sample
    ],
)
def test_a_short_last_batch_is_dropped_if_the_task_or_batch_norm_wants_it(
    task: type[CrossEntropy], make: Callable[[], nn.Module], count: int, steps: int
) -> None:
    work, _ = local_work(make(), task(), samples(count), settings(3, 5))
    assert descend(work).steps == 3 * steps


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(("count", "how"), [(20, settings()), (23, settings(3, 4)), (7, settings(2, 100, 0.3))])
def test_small_models_get_the_bits_of_torchs_own_optimiser(
    make: Callable[[], nn.Module], count: int, how: TrainingSettings
) -> None:
    torch.manual_seed(1)
    ours = make()
    theirs = copy.deepcopy(ours)
    x, y = samples(count)
    work, trained = local_work(ours, CrossEntropy(), (x, y), how)
    torch.manual_seed(2)
    loss, steps = descend(work)
    torch.manual_seed(2)
    expected = by_torch(theirs, x, y, how, 3)
    state = theirs.state_dict()
    for name, array in trained.arrays.items():
        assert np.array_equal(array, as_numpy(state[name])), name
    assert loss == pytest.approx(expected, rel=1e-6)
    assert steps == how.local_epochs * math.ceil(count / how.batch_size)


def toy(client: int, epochs: int, batch_size: int = 10, learning_rate: float = 0.1) -> tuple[float, float, int]:
    """w after training from 1, mean loss, batches."""
    task, control = Toy(), Control()
    part = task.data(client).train
    data = torch.from_numpy(part.x), torch.from_numpy(part.y)
    work, trained = local_work(task.model(), task, data, settings(epochs, batch_size, learning_rate), control=control)
    loss, steps = descend(work)
    assert steps == control.mark
    return trained.arrays["w"].item(), loss, control.mark


@pytest.mark.parametrize(("client", "expected"), [(0, 0.81), (1, 1.57)])
def test_two_steps_on_the_toy_problem_give_the_published_values(client: int, expected: float) -> None:
    assert toy(client, epochs=2)[0] == pytest.approx(expected, abs=1e-12)


def test_local_epochs_and_batches_are_counted_and_the_short_last_batch_is_kept() -> None:
    assert SAMPLES[1] == 3
    for epochs, batch_size, batches in [(1, 3, 1), (1, 2, 2), (4, 2, 8), (2, 1, 6)]:
        w, _, mark = toy(1, epochs, batch_size)
        assert mark == batches
        assert w == pytest.approx(TARGETS[1] + (1 - TARGETS[1]) * 0.9**batches)


def test_the_loss_is_the_mean_over_the_samples_seen() -> None:
    # two batches, of 2 and of 1 sample: 0.5 * 3^2 and 0.5 * 2.7^2
    assert toy(1, 1, batch_size=2)[1] == pytest.approx((2 * 4.5 + 1 * 3.645) / 3)


def test_every_epoch_has_an_order_of_its_own() -> None:
    seen: list[list[float]] = []

    class Watching(Toy):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            seen.append(targets.tolist())
            return super().loss(outputs, targets)

    task = Watching()
    data = torch.zeros(50, 1, dtype=torch.float64), torch.arange(50, dtype=torch.float64)
    descend(local_work(task.model(), task, data, settings(2, 50))[0])
    first, second = seen
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(range(50))}) == 3


def test_it_trains_in_training_mode_whatever_the_mode_was() -> None:
    module = norm_and_dropout().eval()
    descend(local_work(module, CrossEntropy(), samples(10), settings())[0])
    assert int(module.state_dict()["1.num_batches_tracked"]) == 2


def test_it_stops_at_the_end_of_the_batch_when_told_to() -> None:
    control = Control(stop=threading.Event())
    control.stop.set()
    work, trained = local_work(mlp(), CrossEntropy(), samples(50), settings(), control=control)
    with pytest.raises(StoppedError):
        descend(work)
    assert control.mark == 1
    assert not np.array_equal(trained.arrays["0.weight"], work.received.arrays["0.weight"])
