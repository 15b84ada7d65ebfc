from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.aggregation import Mean


def models(count: int, seed: int, elements: int = 7) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "w": rng.standard_normal((3, elements)).astype(np.float32),
            "batches": np.array(rng.integers(100)),
            "h": rng.standard_normal(elements).astype(np.float16),
            "d": np.array(rng.standard_normal()),
        }
        for _ in range(count)
    ]


def mean_of(folds: list[tuple[dict[str, np.ndarray], int]], weighted: bool) -> dict[str, np.ndarray]:
    mean = Mean(weighted=weighted)
    for tensors, samples in folds:
        mean.fold(tensors, samples)
    return mean.result()


@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 2**32), samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=6))
@settings(deadline=None, max_examples=25)
def test_the_mean_has_the_bits_of_the_documented_operations(weighted: bool, seed: int, samples: list[int]) -> None:
    members = models(len(samples), seed)
    result = mean_of(list(zip(members, samples, strict=True)), weighted)
    weights = [float(n) if weighted else 1.0 for n in samples]
    for name in ("w", "h", "d"):
        acc = weights[0] * members[0][name].astype(np.float64)
        for weight, member in zip(weights[1:], members[1:], strict=True):
            acc = acc + weight * member[name].astype(np.float64)
        expected = (acc / sum(weights)).astype(members[0][name].dtype)
        assert result[name].dtype == expected.dtype
        assert result[name].shape == members[0][name].shape
        assert result[name].tobytes() == expected.tobytes()


def test_tensors_longer_than_a_block_are_averaged_to_the_end() -> None:
    first, second = models(2, seed=1, elements=50_000)
    result = mean_of([(first, 1), (second, 1)], weighted=False)
    expected = ((first["w"].astype(np.float64) + second["w"]) / 2).astype(np.float32)
    assert np.array_equal(result["w"], expected)


def test_an_exact_mean_is_not_rounded_to_the_dtype_of_the_models() -> None:
    folds = [(model, count) for model, count in zip(models(2, 3), (1, 2), strict=True)]
    mean = Mean(weighted=True)
    for model, count in folds:
        mean.fold(model, count)
    first, second = (model for model, _ in folds)
    exact, rounded = mean.result(exact=True), mean.result()
    assert exact["w"].dtype == np.float64
    assert np.array_equal(exact["w"], (first["w"].astype(np.float64) + 2 * second["w"].astype(np.float64)) / 3)
    for name, array in rounded.items():
        assert np.array_equal(exact[name].astype(array.dtype), array)


def test_integer_tensors_are_those_of_the_first_model() -> None:
    members = models(3, seed=2)
    first = members[0]["batches"].copy()
    mean = Mean(weighted=True)
    for member in members:
        mean.fold(member, 5)
    members[0]["batches"][()] = -1
    assert mean.result()["batches"] == first
    assert mean.result()["batches"].dtype == first.dtype


def test_one_model_is_its_own_mean_down_to_the_sign_of_zero() -> None:
    tensors = {"w": np.array([-0.0, 0.0, 1e-40, 3.4e38], dtype=np.float32)}
    for weighted in (False, True):
        assert mean_of([(tensors, 7)], weighted)["w"].tobytes() == tensors["w"].tobytes()


def test_a_result_may_be_read_midway() -> None:
    mean = Mean(weighted=False)
    mean.fold({"w": np.array([1.0])})
    early = mean.result()["w"]
    mean.fold({"w": np.array([2.0])})
    assert early.tolist() == [1.0]
    assert mean.result()["w"].tolist() == [1.5]


def test_the_order_of_names_is_kept_and_the_inputs_are_untouched() -> None:
    tensors = {"z": np.array([1.0]), "n": np.array([1]), "a": np.array([2.0])}
    result = mean_of([(tensors, 1), (tensors, 2)], weighted=True)
    assert list(result) == ["z", "n", "a"]
    assert tensors["z"].tolist() == [1.0]


def test_a_tensor_that_is_not_contiguous_or_read_only_is_accepted() -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3).T
    tensor.flags.writeable = False
    assert np.array_equal(mean_of([({"w": tensor}, 1), ({"w": tensor}, 1)], weighted=True)["w"], tensor)


def test_no_model_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no model was folded"):
        Mean(weighted=False).result()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.zeros(3, np.float32)}, r"tensor 'w' is float32\[2\] in the first, float32\[3\] here"),
        ({"w": np.zeros(2)}, r"float64\[2\] here"),
        ({}, "absent here"),
        ({"w": np.zeros(2, np.float32), "x": np.zeros(1)}, "tensor 'x' is absent in the first"),
    ],
)
def test_models_that_differ_are_refused_and_leave_the_mean_as_it_was(
    other: dict[str, np.ndarray], message: str
) -> None:
    mean = Mean(weighted=False)
    mean.fold({"w": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match=message):
        mean.fold(other)
    assert mean.result()["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("samples", [0, -1, float("nan"), float("inf")])
def test_a_weight_that_is_not_positive_is_refused(samples: float) -> None:
    with pytest.raises(ValueError, match="cannot weigh"):
        Mean(weighted=True).fold({"w": np.ones(2)}, samples)


@pytest.mark.parametrize("tensors", [{}, {"w": np.ones(2), "c": np.ones(2, np.complex64)}])
def test_a_model_without_a_mean_is_refused(tensors: dict[str, np.ndarray]) -> None:
    mean = Mean(weighted=False)
    with pytest.raises(ValueError, match="no mean"):
        mean.fold(tensors)
    mean.fold({"x": np.ones(1)})
    assert list(mean.result()) == ["x"]
