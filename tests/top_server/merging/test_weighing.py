from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.merging.weighing import WEIGHINGS

NAN, INF = float("nan"), float("inf")
SIZES = np.array([30, 10, 60])


def weights(name: str, sizes: NDArray[np.int64] = SIZES, **columns: object) -> NDArray[np.float64]:
    return WEIGHINGS[name](sizes, {column: np.array(values, np.float64) for column, values in columns.items()}, {})


def test_samples_count_each_sample_alike() -> None:
    assert weights("samples").tolist() == [30, 10, 60]


def test_uniform_counts_each_member_alike() -> None:
    assert weights("uniform").tolist() == [1, 1, 1]


def test_fedfa_counts_those_more_whom_the_model_serves_badly() -> None:
    found = weights("fedfa", train_accuracy=(0.5, 0.25, 1))
    assert found / found.sum() == pytest.approx([1 / 3, 2 / 3, 0])


def test_fedfa_takes_an_accuracy_of_0_for_a_very_small_one() -> None:
    assert weights("fedfa", train_accuracy=(0, 1, 0.5)) == pytest.approx([-np.log2(1e-7), 0, 1])


def test_fedfa_counts_all_alike_when_all_are_perfect() -> None:
    assert weights("fedfa", train_accuracy=(1, 1, 1)).tolist() == [1, 1, 1]


def test_maxfl_counts_those_more_who_are_near_to_gaining() -> None:
    found = weights("maxfl", np.array([1, 1]), train_loss=(1.0, 0.2), prior_loss=(0.5, 0.5))
    assert found == pytest.approx([0.235004, 0.244458], abs=5e-7)
    assert found / found.sum() == pytest.approx([0.490140, 0.509860], abs=5e-7)
    sigmoid = 1 / (1 + np.exp(-np.array([0.5, -0.3])))
    assert sigmoid == pytest.approx([0.622459, 0.425557], abs=5e-7)
    assert found == pytest.approx(sigmoid * (1 - sigmoid))


@pytest.mark.parametrize(
    ("gaps", "shares"), [((34, 36), (0.880797, 0.119203)), ((-37, 38), (0.731059, 0.268941)), ((40, 60), (1, 0))]
)
def test_maxfl_tells_those_apart_who_are_far_from_gaining(gaps: object, shares: object) -> None:
    found = weights("maxfl", np.array([1, 1]), train_loss=gaps, prior_loss=(0, 0))
    assert found / found.sum() == pytest.approx(shares, abs=5e-7)
    assert found.min() > 0


def test_maxfl_bears_losses_of_any_size() -> None:
    assert weights("maxfl", train_loss=(1e308, -5000, 1), prior_loss=(-1e300, 5000, 1)).tolist() == [0, 0, 0.25]
    assert weights("maxfl", train_loss=(INF, INF, 1), prior_loss=(INF, 1, 1)).tolist() == [0, 0, 0.25]


@pytest.mark.parametrize("name", WEIGHINGS)
def test_a_member_of_whom_nothing_is_known_counts_nothing(name: str) -> None:
    evidence: dict[str, Any] = dict.fromkeys(("train_accuracy", "train_loss", "prior_loss"), (0.5, NAN, 0.5))
    found = weights(name, **evidence)
    assert found.shape == (3,)
    assert found.dtype == np.float64
    assert found.min() >= 0
    if name in ("fedfa", "maxfl"):
        assert found[1] == 0


@pytest.mark.parametrize("name", WEIGHINGS)
def test_where_nothing_is_known_of_anybody_all_count_alike(name: str) -> None:
    evidence: dict[str, Any] = dict.fromkeys(("train_accuracy", "train_loss", "prior_loss"), (NAN, NAN, NAN))
    assert weights(name, np.zeros(3, np.int64), **evidence).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("name", "column"), [("fedfa", "train_accuracy"), ("maxfl", "train_loss")])
def test_missing_evidence_is_refused_by_name(name: str, column: str) -> None:
    with pytest.raises(ConfigError, match=f"weighing {name} needs {column} of every member"):
        weights(name)
