"""What a step leaves behind, and what it never holds at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.tensors.weights import Weights
from fedgsp_node.training.steps import descent
from tests.support.local_work import CrossEntropy, local_work, samples, settings, whole_batch
from tests.support.trainings import ALGORITHMS, KEEPING

torch.set_num_threads(1)


class _Filters(nn.Module):
    """Two layers that leave no factors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1))
        self.last = nn.Linear(40, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x[:, None])))).flatten(1))


def _is_filter(parameter: torch.Tensor) -> bool:
    return parameter.dim() == 3


def _trained(algorithm: str) -> Weights:
    torch.manual_seed(1)
    work, trained = local_work(_Filters(), CrossEntropy(), samples(13), settings(2, algorithm=algorithm))
    if algorithm in KEEPING:
        work.personal = work.received.copy()
    ALGORITHMS[algorithm].train(work)
    return trained


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_applied_early_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    late = _trained(algorithm)
    monkeypatch.setattr("fedgsp_node.training.plain.large", _is_filter)
    assert _trained(algorithm).digest == late.digest


@pytest.mark.parametrize("at_once", [3, 64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_losses_that_are_read_late_make_the_same_mean(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, at_once: int
) -> None:
    """As on a GPU, where some losses are read together: here, too, if steps take the CPU for one."""

    def loss() -> float:
        torch.manual_seed(1)
        work, _ = local_work(_Filters(), CrossEntropy(), samples(33), settings(2, algorithm=algorithm))
        if algorithm in KEEPING:
            work.personal = work.received.copy()
        return ALGORITHMS[algorithm].train(work).loss

    at_each_step = loss()
    monkeypatch.setattr("fedgsp_node.training.stepping.CPU", torch.device("meta"))
    monkeypatch.setattr("fedgsp_node.training.stepping.MOST_LOSSES", at_once)
    assert loss() == at_each_step


def test_a_large_gradient_is_gone_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp_node.training.plain.large", _is_filter)
    module = _Filters()
    work, trained = local_work(module, CrossEntropy(), samples(5), settings())
    seen = []

    def look(_gradient: torch.Tensor) -> None:  # of the first layer, which comes last
        changed = not np.array_equal(trained.arrays["second.weight"], work.received.arrays["second.weight"])
        seen.append((changed, module.second.weight.grad is None))

    module.first.weight.register_hook(look)
    with descent(work) as steps:
        steps.step(whole_batch(work), 0.1)
    assert seen == [(True, True)]


def test_no_gradient_stays_and_nobody_elses_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp_node.training.plain.large", _is_filter)
    module = _Filters()
    work, trained = local_work(module, CrossEntropy(), samples(5), settings())
    with descent(work) as steps:
        steps.step(whole_batch(work), 0.1)
        assert all(parameter.grad is None for parameter in module.parameters())
        before = trained.copy()
        module(work.samples.whole()[0]).sum().backward()
    assert all(parameter.grad is None for parameter in module.parameters())
    module(work.samples.whole()[0]).sum().backward()
    assert trained.buffer.tobytes() == before.buffer.tobytes()


class _Codebook(nn.Module):
    """Uses a filter's weights a second time, without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, 1, 3))
        self.last = nn.Linear(40, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filtered = nn.functional.conv1d(x[:, None], self.filter, padding=1)
        return self.last((filtered * self.filter.detach().pow(2).sum()).flatten(1))


def test_a_parameter_that_is_used_otherwise_too_is_changed_after_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for is_large in (_is_filter, lambda _: False):
        monkeypatch.setattr("fedgsp_node.training.plain.large", is_large)
        torch.manual_seed(1)
        work, trained = local_work(_Codebook(), CrossEntropy(), samples(5), settings())
        with descent(work) as steps:
            steps.step(whole_batch(work), 0.1)
        found.append(trained.digest)
    assert found[0] == found[1]
