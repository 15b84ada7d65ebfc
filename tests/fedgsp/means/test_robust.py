"""The median and the trimmed mean of models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

import fedgsp.tensors.spill
from fedgsp.means import robust
from fedgsp.means.robust import Median, TrimmedMean
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights

TENSORS = (
    TensorSpec("w", "float32", (3, 5)),
    TensorSpec("batches", "int64", (), trainable=False),
    TensorSpec("h", "float16", (7,)),
    TensorSpec("b", "bfloat16", (9,)),
    TensorSpec("none", "float32", (0,)),
    TensorSpec("d", "float64", ()),
)
FLOATS = ("w", "h", "b", "d")
KINDS: dict[str, Callable[[], Median | TrimmedMean]] = {"median": Median, "trimmed-mean": lambda: TrimmedMean(0.3)}
EVERY = pytest.mark.parametrize("kind", KINDS)

_seeds = st.integers(0, 2**32)


def models(count: int, seed: int) -> list[Weights]:
    """Among their values are equal ones, and zeros of both signs."""
    rng = np.random.default_rng(seed)

    def floats(shape: tuple[int, ...]) -> np.ndarray:
        return np.where(rng.random(shape) < 0.5, rng.standard_normal(shape), rng.choice([0.0, -0.0, 1.0], shape))

    return [
        Weights.of(
            {s.name: floats(s.shape) if s.dtype != "int64" else np.array(rng.integers(100)) for s in TENSORS}, TENSORS
        )
        for _ in range(count)
    ]


def result_of(kind: Median | TrimmedMean, folds: list[Weights]) -> Weights:
    for weights in folds:
        kind.fold(weights, 3)
    return kind.result()


def stacked(folds: list[Weights], name: str) -> np.ndarray:
    return np.stack([weights.arrays[name] for weights in folds]).astype(np.float64)


@given(_seeds, st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_the_median_is_that_of_numpy(seed: int, count: int) -> None:
    folds = models(count, seed)
    found = result_of(Median(), folds)
    assert found.tensors == TENSORS
    for name in FLOATS:
        expected = np.median(stacked(folds, name), axis=0).astype(found.arrays[name].dtype)
        assert np.array_equal(found.arrays[name], expected)


@given(_seeds, st.integers(1, 12), st.data())
@settings(deadline=None, max_examples=40)
def test_the_trimmed_mean_is_that_of_scipy(seed: int, count: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, (count - 1) // 2))
    trim = cut / count + 1e-9
    folds = models(count, seed)
    found = result_of(TrimmedMean(trim), folds)
    for name in FLOATS:
        array = found.arrays[name]
        expected = trim_mean(stacked(folds, name), trim, axis=0)
        # to the rounding of the dtype, and that of sums in float64 in another order
        assert np.all(np.abs(array - expected) <= 0.51 * np.spacing(np.abs(array)) + 1e-14), name


@EVERY
@given(_seeds, st.permutations(range(7)), st.integers(2, 7))
@settings(deadline=None, max_examples=40)
def test_the_order_of_the_models_makes_no_difference_to_a_bit(
    kind: str, seed: int, order: list[int], count: int
) -> None:
    folds = models(count, seed)
    other = [folds[position] for position in order if position < count]
    one, two = (result_of(KINDS[kind](), models).arrays for models in (folds, other))
    assert [one[name].tobytes() for name in FLOATS] == [two[name].tobytes() for name in FLOATS]


@EVERY
@given(_seeds, st.integers(4, 9), st.floats(width=16, allow_nan=False, allow_infinity=False), st.data())
@settings(deadline=None, max_examples=40)
def test_one_wrong_model_leaves_every_coordinate_within_the_range_of_the_others(
    kind: str, seed: int, count: int, value: float, data: st.DataObject
) -> None:
    right = models(count - 1, seed)
    wrong = Weights.of({spec.name: np.full(spec.shape, value) for spec in TENSORS}, TENSORS)
    place = data.draw(st.integers(0, count - 1))
    found = result_of(KINDS[kind](), [*right[:place], wrong, *right[place:]])
    for name in FLOATS:
        among = stacked(right, name)
        assert (among.min(axis=0) <= found.arrays[name]).all()
        assert (found.arrays[name] <= among.max(axis=0)).all()


def test_the_middle_of_three_is_never_the_wrong_one() -> None:
    tensors = (TensorSpec("w", "float32", (2,)),)
    most = float(np.finfo(np.float32).max)
    three = [Weights.of({"w": np.array(w)}, tensors) for w in ([1.0, 4.0], [most, -most], [2.0, 3.0])]
    assert result_of(Median(), three).arrays["w"].tolist() == [2.0, 3.0]


@EVERY
def test_one_model_alone_is_its_own_mean_down_to_the_sign_of_zero(kind: str) -> None:
    (one,) = models(1, 0)
    one.arrays["w"][...] = -0.0
    assert result_of(KINDS[kind](), [one]).buffer is one.buffer


@EVERY
def test_integer_tensors_are_those_of_the_first_model_and_no_model_is_changed(kind: str) -> None:
    folds = models(3, 2)
    before = [weights.buffer.copy() for weights in folds]
    found = result_of(KINDS[kind](), folds)
    assert found.arrays["batches"] == folds[0].arrays["batches"]
    assert [weights.buffer.tobytes() for weights in folds] == [bits.tobytes() for bits in before]


@EVERY
def test_blocks_and_files_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = (TensorSpec("n", "int8", (3,)), TensorSpec("w", "float32", (5000,)))
    rng = np.random.default_rng(0)
    folds = [
        Weights.of({"n": np.full(3, k), "w": rng.standard_normal(5000).astype(np.float32)}, tensors) for k in range(4)
    ]
    expected = result_of(KINDS[kind](), folds)
    monkeypatch.setattr(robust, "_SCRATCH_BYTES", 1)
    monkeypatch.setattr(fedgsp.tensors.spill, "SPILLED_BYTES", 1)
    mean = KINDS[kind]()
    for weights in folds:
        mean.fold(weights)
        weights.buffer[...] = 0  # what is kept is in a file by now
    found = mean.result()
    assert found.digest == expected.digest == Weights.of(found.arrays, tensors).digest


@pytest.mark.parametrize(
    ("trim", "count", "left_out"), [(0.29, 100, 29), (0.1, 9, 0), (0.49999999999, 3, 1), (0, 3, 0)]
)
def test_the_share_that_is_trimmed_is_what_is_written_and_never_all(trim: float, count: int, left_out: int) -> None:
    tensors = (TensorSpec("w", "float64", ()),)
    squares = [float(k * k) for k in range(count)]
    folds = [Weights.of({"w": np.array(w)}, tensors) for w in squares]
    expected = np.mean(squares[left_out : count - left_out])
    assert float(result_of(TrimmedMean(trim), folds).arrays["w"]) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("trim", [-0.1, 0.5, float("nan")])
def test_a_share_that_leaves_nothing_is_refused(trim: float) -> None:
    with pytest.raises(ValueError, match="cannot be trimmed"):
        TrimmedMean(trim)


@EVERY
def test_models_that_differ_are_refused_and_change_nothing(kind: str) -> None:
    mean, folds = KINDS[kind](), models(2, 4)
    with pytest.raises(ValueError, match="no model was folded"):
        mean.result()
    with pytest.raises(ValueError, match="without tensors"):
        mean.fold(Weights.empty(()))
    assert mean.empty
    mean.fold(folds[0])
    with pytest.raises(ValueError, match="the models differ: tensor 'w'"):
        mean.fold(Weights.empty((TensorSpec("w", "float32", (3,)),)))
    mean.fold(folds[1])
    assert mean.result().digest == result_of(KINDS[kind](), folds).digest
