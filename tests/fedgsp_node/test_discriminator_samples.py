"""What discriminators are given of a client's data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.errors import TaskError
from fedgsp.task import Split
from fedgsp_node.discriminators import encoded, split
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs


class Seen(Blobs):
    """Twice the first three numbers of a sample, unless told otherwise."""

    def __init__(self, returns: Any = None) -> None:
        super().__init__()
        self.returns = returns
        self.seen: list[tuple[int, bool]] = []
        self.weight = torch.full((), 2.0, requires_grad=True)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((len(x), torch.is_grad_enabled()))
        if self.returns is not None:
            return torch.as_tensor(self.returns)
        return x[:, :3].double() * self.weight


def test_features_are_made_in_blocks_without_gradients() -> None:
    x = np.random.default_rng(0).standard_normal((600, 6)).astype(np.float32)
    task, control = Seen(), Control()
    samples = encoded(task, Split(x, np.arange(600, dtype=np.int32) % 3), control)
    assert task.seen == [(256, False), (256, False), (88, False)]
    assert control.mark == 3
    assert samples.x.dtype == torch.float32
    assert samples.y.dtype == torch.int64
    assert not samples.x.requires_grad
    assert (len(samples), samples.classes) == (600, 3)
    assert np.array_equal(samples.x.numpy(), 2 * x[:, :3])


@pytest.mark.parametrize(
    ("returns", "complaint"),
    [(np.zeros((5, 2, 2)), "returned shape"), (np.zeros((4, 2)), "returned shape"), (np.full((5, 2), np.nan), "NaN")],
)
def test_bad_features_are_refused(returns: Any, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        encoded(Seen(returns), Split(np.zeros((5, 6), np.float32), np.zeros(5, np.int64)), Control())


def test_inputs_are_flattened_without_an_encoder() -> None:
    x = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    samples = encoded(Blobs(), Split(x, np.zeros(5, np.int64)), Control())
    assert np.array_equal(samples.x.numpy(), x.reshape(5, 12))


@pytest.mark.parametrize("labels", [np.zeros(5, np.float32), np.zeros((5, 2), np.int64)])
def test_targets_that_are_no_class_labels_are_refused(labels: Any) -> None:
    with pytest.raises(TaskError, match="one class label per sample"):
        encoded(Seen(), Split(np.zeros((5, 6), np.float32), labels), Control())


@settings(deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 6), min_size=2, max_size=80),
    share=st.floats(0, 1),
    fold=st.integers(0, 1),
    seed=st.integers(0, 9),
)
def test_a_split_has_exactly_the_samples_wanted_in_the_label_mix(
    labels: list[int], share: float, fold: int, seed: int
) -> None:
    y = np.array(labels)
    wanted = max(1, min(len(y) // 2 if fold else len(y) - 1, round(share * len(y))))
    train, validation = split(y, wanted, fold, np.random.default_rng(seed))
    assert len(train) == wanted
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(len(y)))
    drawn_from = y
    if fold:  # from what the first draw has left
        first, drawn = split(y, wanted, 0, np.random.default_rng(seed))
        assert not set(first).intersection(train)
        drawn_from = y[drawn]
    for label in range(7):
        share_below = (drawn_from <= label).sum() * wanted / len(drawn_from)
        assert abs((y[train] <= label).sum() - share_below) <= 0.5 + 1e-9
    assert all(np.array_equal(rows, np.unique(rows)) for rows in (train, validation))


@pytest.mark.parametrize(("samples", "fold"), [(0, 0), (10, 0), (6, 1), (5, 2), (5, -1)])
def test_a_split_that_cannot_be_is_refused(samples: int, fold: int) -> None:
    with pytest.raises(ValueError, match="10 samples cannot be divided"):
        split(np.zeros(10, np.int64), samples, fold, np.random.default_rng(0))


def test_the_half_of_a_small_client_is_7_of_14() -> None:
    labels = np.repeat([5, 6, 7, 8], [2, 4, 4, 4])
    chosen, rest = split(labels, 7, 0, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist()[5:] == [1, 2, 2, 2]
    assert len(rest) == 7


def test_a_split_is_random_within_a_label() -> None:
    y = np.zeros(30, np.int64)
    found = np.zeros(30)
    for seed in range(200):
        found[split(y, 15, 0, np.random.default_rng(seed))[0]] += 1
    assert 60 < found.min() < found.max() < 140  # binomial, mean 100 and deviation 7
