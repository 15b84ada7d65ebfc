from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.means.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.tensors.dtypes import BFLOAT16
from fedgsp.tensors.weights import Weights
from tests.support.reference import cast

Arrays = dict[str, np.ndarray]


def packed(arrays: Arrays) -> Weights:
    return Weights.of(arrays, tuple(TensorSpec(name, str(a.dtype), a.shape) for name, a in arrays.items()))


def models(count: int, seed: int, elements: int = 7) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "w": rng.standard_normal((3, elements)).astype(np.float32),
            "batches": np.array(rng.integers(100)),
            "h": rng.standard_normal(elements).astype(np.float16),
            "d": np.array(rng.standard_normal()),
            "b": rng.standard_normal((2, elements)).astype(BFLOAT16),
        }
        for _ in range(count)
    ]


def mean_of(folds: list[tuple[Arrays, int]], weighted: bool) -> Arrays:
    mean = Mean(weighted=weighted)
    for tensors, samples in folds:
        mean.fold(packed(tensors), samples)
    return mean.result().arrays


@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 2**32), samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=6))
@settings(deadline=None, max_examples=25)
def test_the_mean_has_the_bits_of_the_documented_operations(weighted: bool, seed: int, samples: list[int]) -> None:
    members = models(len(samples), seed)
    result = mean_of(list(zip(members, samples, strict=True)), weighted)
    weights = [float(n) if weighted else 1.0 for n in samples]
    for name in ("w", "h", "d", "b"):
        acc = weights[0] * members[0][name].astype(np.float64)
        for weight, member in zip(weights[1:], members[1:], strict=True):
            acc = acc + weight * member[name].astype(np.float64)
        expected = cast(acc / sum(weights), members[0][name].dtype)
        assert result[name].dtype == expected.dtype
        assert result[name].shape == members[0][name].shape
        assert result[name].tobytes() == expected.tobytes()


def test_tensors_longer_than_a_block_are_averaged_to_the_end() -> None:
    first, second = models(2, seed=1, elements=50_000)
    result = mean_of([(first, 1), (second, 1)], weighted=False)
    expected = ((first["w"].astype(np.float64) + second["w"]) / 2).astype(np.float32)
    assert np.array_equal(result["w"], expected)


def test_a_mean_is_adjusted_before_it_is_rounded() -> None:
    members, seen = models(2, 3), {}

    def negate(spec: TensorSpec, mean: np.ndarray) -> None:
        seen[spec.name] = mean.copy()
        mean *= -1

    mean = Mean(weighted=True)
    for member, count in zip(members, (1, 2), strict=True):
        mean.fold(packed(member), count)
    result = mean.result(negate).arrays
    assert list(seen) == ["w", "h", "d", "b"]
    first, second = (member["w"].astype(np.float64).reshape(-1) for member in members)
    assert np.array_equal(seen["w"], (first + 2 * second) / 3)
    for name, exact in seen.items():
        assert np.array_equal(result[name], -exact.reshape(result[name].shape).astype(result[name].dtype))


def test_one_model_can_be_adjusted_too() -> None:
    mean = Mean(weighted=True)
    mean.fold(packed({"w": np.array([3.0], np.float32)}), 5)

    def halve(_: TensorSpec, values: np.ndarray) -> None:
        values /= 2

    assert mean.result(halve).arrays["w"].tolist() == [1.5]


def test_integer_tensors_are_those_of_the_first_model() -> None:
    members = models(3, seed=2)
    result = mean_of([(member, 5) for member in members], weighted=True)
    assert result["batches"] == members[0]["batches"]
    assert result["batches"].dtype == members[0]["batches"].dtype


def test_one_model_is_its_own_mean_down_to_the_sign_of_zero() -> None:
    tensors = {"w": np.array([-0.0, 0.0, 1e-40, 3.4e38], dtype=np.float32)}
    for weighted in (False, True):
        assert mean_of([(tensors, 7)], weighted)["w"].tobytes() == tensors["w"].tobytes()


def test_the_result_has_the_layout_and_the_digest_of_any_weights() -> None:
    members = models(4, seed=5, elements=50_001)
    mean = Mean(weighted=False)
    for member in members:
        mean.fold(packed(member))
    found = mean.result()
    assert found.digest == Weights.of(found.arrays, found.tensors).digest
    assert found.tensors == packed(members[0]).tensors


def test_one_model_alone_is_not_copied() -> None:
    mean, one = Mean(weighted=True), packed({"w": np.ones(3, np.float32)})
    mean.fold(one, 3)
    assert mean.result() is one


def test_the_order_of_names_is_kept_and_the_inputs_are_untouched() -> None:
    tensors = {"z": np.array([1.0]), "n": np.array([1]), "a": np.array([2.0])}
    result = mean_of([(tensors, 1), (tensors, 2)], weighted=True)
    assert list(result) == ["z", "n", "a"]
    assert tensors["z"].tolist() == [1.0]


def test_no_model_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no model was folded"):
        Mean(weighted=False).result()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.zeros(3, np.float32)}, r"tensor 'w' is float32\[2\] in the first, float32\[3\] here"),
        ({"w": np.zeros(2)}, r"float64\[2\] here"),
        ({"x": np.zeros(2, np.float32)}, "absent here"),
        ({}, "no mean"),
        ({"w": np.zeros(2, np.float32), "x": np.zeros(1)}, "tensor 'x' is absent in the first"),
    ],
)
def test_models_that_differ_are_refused_and_leave_the_mean_as_it_was(
    other: dict[str, np.ndarray], message: str
) -> None:
    mean = Mean(weighted=False)
    mean.fold(packed({"w": np.ones(2, np.float32)}))
    with pytest.raises(ValueError, match=message):
        mean.fold(packed(other))
    assert mean.result().arrays["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("samples", [0, -1, float("nan"), float("inf")])
def test_a_weight_that_is_not_positive_is_refused(samples: float) -> None:
    with pytest.raises(ValueError, match="cannot weigh"):
        Mean(weighted=True).fold(packed({"w": np.ones(2)}), samples)
