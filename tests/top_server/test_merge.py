from __future__ import annotations

import numpy as np
import pytest

from fedgsp.means.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights


def merged(name: str, *folds: tuple[float, int]) -> float:
    merge = Mean(weighted=name == "weighted-mean")
    for value, samples in folds:
        merge.fold(Weights.of({"w": np.array([value])}, (TensorSpec("w", "float64", (1,)),)), samples)
    return float(merge.result().arrays["w"][0])


def test_the_mean_is_over_the_sampled_groups_only() -> None:
    assert merged("mean", (1.21, 50), (1.18, 100)) == pytest.approx(1.195)
    assert merged("mean", (1.21, 50)) == 1.21  # one of two groups sampled: not 0.605


def test_the_weighted_mean_of_the_toy_clients_is_that_of_fedavg() -> None:
    assert merged("weighted-mean", (0.81, 1), (1.57, 3)) == pytest.approx(1.38)
    assert merged("weighted-mean", (0.82, 1), (1.54, 3)) == pytest.approx(1.36)  # FedProx


def test_relays_of_one_client_merge_to_the_unweighted_mean_of_fedavg() -> None:
    """M = K with the toy clients c = (0, 4), one step of rate 0.1 from 1."""
    assert merged("mean", (1 - 0.1 * (1 - 0), 1), (1 - 0.1 * (1 - 4), 3)) == pytest.approx(1.1)
