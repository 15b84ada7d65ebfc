"""What becomes of models that were trained in parallel: FedAvg's mean, FedNova, and robust means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import ConfigError
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights
from group_manager.aggregation_classes import Aggregation, make
from top_server.choosing import NAMES
from top_server.schemes import SCHEMES

#: A model with a parameter, a running variance and a batch counter.
NORMALISED = (
    TensorSpec("w", "float32", (2,)),
    TensorSpec("seen.var", "float32", (2,), trainable=False),
    TensorSpec("seen.count", "int64", (), trainable=False),
)
#: Of each client: its w, how it counts, its local steps.
Clients = list[tuple[float, float, float]]
EVERY = pytest.mark.parametrize("name", AGGREGATIONS.built_in)


def scalar(value: float, dtype: str = "float64") -> Weights:
    return Weights.of({"w": np.array([value])}, (TensorSpec("w", dtype, (1,)),))


def value_of(weights: Weights) -> float:
    return float(weights.arrays["w"][0])


def normalised(w: float, variance: float, count: int) -> Weights:
    arrays = {"w": np.full(2, w), "seen.var": np.full(2, variance), "seen.count": np.array(count)}
    return Weights.of(arrays, NORMALISED)


def folded(name: str, clients: Clients, dtype: str = "float64") -> Aggregation:
    aggregation = make(name, {})
    for w, weight, steps in clients:
        aggregation.fold(scalar(w, dtype), weight, steps)
    return aggregation


def by_definition(start: float, clients: Clients) -> float:
    """FedNova as section 6 writes it."""
    total = sum(weight for _, weight, _ in clients)
    effective = sum(weight / total * steps for _, weight, steps in clients)
    return start + effective * sum(weight / total * (w - start) / steps for w, weight, steps in clients)


def toy(target: float, steps: int) -> float:
    w = 1.0
    for _ in range(steps):
        w -= 0.1 * (w - target)
    return w


TOY: Clients = [(toy(0, 1), 1, 1), (toy(4, 3), 3, 3)]


def test_the_toy_problem_gives_the_published_values() -> None:
    assert value_of(folded("fednova", TOY).result(scalar(1.0))) == pytest.approx(1.445625, abs=1e-12)
    assert value_of(folded("mean", TOY).result(None)) == pytest.approx(1.58475, abs=1e-12)


def test_the_mean_counts_weights_and_not_steps() -> None:
    few, many = ([(1.0, 1.0, steps), (4.0, 3.0, 5.0)] for steps in (0.0, 99.0))
    assert value_of(folded("mean", few).result(None)) == value_of(folded("mean", many).result(None)) == 3.25


_numbers = st.floats(-100, 100)
_clients = st.lists(st.tuples(_numbers, st.floats(0.1, 1000), st.floats(0.5, 500)), min_size=1, max_size=6)


@given(_numbers, _clients)
@settings(deadline=None)
def test_fednova_is_what_its_formula_says(start: float, clients: Clients) -> None:
    expected = by_definition(start, clients)
    found = value_of(folded("fednova", clients).result(scalar(start)))
    reach = max(steps for *_, steps in clients) / min(steps for *_, steps in clients)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-11 * reach)


@given(_numbers, _clients, st.floats(0.5, 500))
@settings(deadline=None)
def test_with_equal_steps_fednova_is_the_mean(start: float, clients: Clients, steps: float) -> None:
    equal = [(w, weight, steps) for w, weight, _ in clients]
    mean = value_of(folded("mean", equal).result(None))
    assert value_of(folded("fednova", equal).result(scalar(start))) == pytest.approx(mean, rel=1e-12, abs=1e-11)


def test_fednova_rounds_to_single_precision_once() -> None:
    """A mean that is rounded first would be wrong by up to `reach` times as much."""
    rng, like = np.random.default_rng(0), (TensorSpec("w", "float32", (500,)),)
    start, one, other = (Weights.of({"w": 1 + 0.1 * rng.standard_normal(500)}, like) for _ in range(3))
    aggregation = make("fednova", {})
    aggregation.fold(one, 1.0, 1.0)
    aggregation.fold(other, 3.0, 9.0)
    w, a, b = (weights.arrays["w"].astype(np.float64) for weights in (start, one, other))
    exact = w + 7 * (1 / 4 * (a - w) / 1 + 3 / 4 * (b - w) / 9)
    found: Any = aggregation.result(start).arrays["w"]
    assert found.dtype == np.float32
    # of two that are equally near, either
    assert (np.abs(found - exact) <= 0.5001 * np.spacing(found)).all()


def test_a_client_alone_has_its_own_model_whatever_its_steps() -> None:
    for steps in (1, 7, 400):
        assert value_of(folded("fednova", [(3.5, 20, steps)]).result(scalar(-1.0))) == pytest.approx(3.5)


def test_buffers_are_averaged_and_never_extrapolated() -> None:
    """Beyond the mean this variance would be negative: 4 + 5.05 (1.12 - 4)."""
    aggregation = make("fednova", {})
    aggregation.fold(normalised(2.0, 1.0, 5), 10, 1)
    aggregation.fold(normalised(4.0, 13.0, 9), 10, 100)
    start = normalised(3.0, 4.0, 1)
    result = aggregation.result(start)
    share = 1 / 1.01
    reach = 50.5 * 0.505
    assert result.arrays["w"] == pytest.approx(3 + reach * (2 * share + 4 * (1 - share) - 3), rel=1e-5)
    assert result.arrays["seen.var"] == pytest.approx(share + 13 * (1 - share), rel=1e-6)
    assert result.arrays["seen.count"] == 5
    assert result.tensors == NORMALISED


@EVERY
def test_the_result_has_the_tensors_of_the_models_and_the_start_keeps_its_bits(name: str) -> None:
    aggregation, start = make(name, {}), normalised(1.0, 1.0, 0)
    before = start.buffer.copy()
    models = [normalised(2.0, 3.0, 4), normalised(5.0, 6.0, 7)]
    kept = [model.buffer.copy() for model in models]
    for model in models:
        aggregation.fold(model, 1, 2)
    result = aggregation.result(start)
    assert result.tensors == NORMALISED
    assert np.array_equal(start.buffer, before)
    assert all(np.array_equal(model.buffer, bits) for model, bits in zip(models, kept, strict=True))
    assert not any(np.shares_memory(result.buffer, model.buffer) for model in (*models, start))


@pytest.mark.parametrize("steps", [0, -1, math.nan, math.inf])
def test_fednova_refuses_unusable_numbers_of_steps_and_keeps_its_sum(steps: float) -> None:
    aggregation = folded("fednova", TOY[:1])
    with pytest.raises(ValueError, match=r"local steps|cannot weigh"):
        aggregation.fold(scalar(1e9), 5, steps)
    aggregation.fold(scalar(TOY[1][0]), 3, 3)
    assert value_of(aggregation.result(scalar(1.0))) == pytest.approx(1.445625, abs=1e-12)


def test_a_first_model_that_is_refused_leaves_nothing() -> None:
    aggregation = make("fednova", {})
    with pytest.raises(ValueError, match="it says that it took 0 local steps"):
        aggregation.fold(scalar(1.0), 5, 0)
    assert aggregation.empty


@EVERY
@pytest.mark.parametrize(
    "other",
    [
        scalar(9.0, "float32"),
        Weights.of({"w": np.zeros(2)}, (TensorSpec("w", "float64", (2,)),)),
        Weights.of({"v": np.zeros(1)}, (TensorSpec("v", "float64", (1,)),)),
    ],
    ids=["dtype", "shape", "name"],
)
def test_a_model_unlike_the_first_is_refused_and_changes_nothing(name: str, other: Weights) -> None:
    aggregation = folded(name, TOY)
    with pytest.raises(ValueError, match="the models differ"):
        aggregation.fold(other, 5, 2)
    start = scalar(1.0)
    assert value_of(aggregation.result(start)) == value_of(folded(name, TOY).result(start))


@EVERY
@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_a_model_counts_something(name: str, weight: float) -> None:
    aggregation = make(name, {})
    with pytest.raises(ValueError, match="cannot weigh"):
        aggregation.fold(scalar(1.0), weight, 1)
    assert aggregation.empty


@EVERY
def test_without_a_model_there_is_no_result(name: str) -> None:
    aggregation = make(name, {})
    assert aggregation.empty
    with pytest.raises(ValueError, match="no model was folded"):
        aggregation.result(scalar(1.0))
    aggregation.fold(scalar(1.0), 1, 1)
    assert not aggregation.empty


def test_only_what_steps_from_the_start_needs_it() -> None:
    assert [name for name, kind in AGGREGATIONS.items() if kind.needs_start] == ["fednova"]


FIVE: Clients = [(9.0, 1, 1), (1e9, 50, 9), (1.0, 1, 1), (5.0, 1, 1), (-1e9, 50, 9)]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("median", {}, 5.0),
        ("trimmed-mean", {}, 3.0),
        ("trimmed-mean", {"trim": "0.2"}, 5.0),
        ("trimmed-mean", {"trim": "0.4"}, 5.0),
        ("mean", {}, 15 / 103),
        ("", {}, 15 / 103),
    ],
)
def test_a_request_names_the_aggregation_and_the_share_that_it_trims(
    name: str, options: dict[str, str], expected: float
) -> None:
    aggregation = make(name, options)
    for w, weight, steps in FIVE:
        aggregation.fold(scalar(w), weight, steps)
    assert value_of(aggregation.result(None)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mode", {}),
        ("median", {"trim": "0.1"}),
        ("trimmed-mean", {"trim": ""}),
        ("trimmed-mean", {"trim": "0.5"}),
        ("trimmed-mean", {"trim": "-0.1"}),
    ],
)
def test_a_name_or_an_option_that_means_nothing_is_refused(name: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"there is no aggregation|has no option|option trim is"):
        make(name, options)


def test_settings_and_schemes_name_the_aggregations_that_there_are() -> None:
    assert list(NAMES["aggregation"]) == list(AGGREGATIONS)
    assert {scheme.aggregation for scheme in SCHEMES.values()} <= set(AGGREGATIONS)
