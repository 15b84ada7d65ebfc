from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.kmeans import clustered, embedded

kmeans = GROUPINGS["kmeans"]


NAN = float("nan")
#: Local models of two kinds.
TWO = [(0, 0), (5, 5), (0.2, 0), (5.2, 5)]


def request(
    weights: object = None,
    settled: tuple[tuple[int, ...], ...] = (),
    gram: NDArray[np.float64] | None = None,
    seed: int = 0,
    clients: tuple[int, ...] = (),
    **options: str,
) -> GroupingRequest:
    """Clients 10, 11, ... whose weights are the rows given, or whose products are `gram`."""
    if weights is not None:
        rows = np.array(weights, np.float64)
        gram = rows @ rows.T
    count = 4 if gram is None else len(gram)
    return GroupingRequest(
        round=1,
        groups=1,
        seed=seed,
        clients=clients or tuple(range(10, 10 + count)),
        sizes=np.full(count, 5),
        matrices={} if gram is None else {"gram": gram},
        options=options,
        settled=settled,
    )


def test_alike_models_are_together() -> None:
    plan = kmeans(request(TWO, clusters="2"))
    assert plan.groups == ((10, 12), (11, 13))
    assert plan.idle == ()
    assert len(kmeans(request(TWO)).groups) == 4


def test_what_all_models_have_in_common_hides_no_difference() -> None:
    common = np.random.default_rng(0).normal(size=1000) * 100
    rng = np.random.default_rng(1)
    weights = common + np.repeat(rng.normal(size=(3, 1000)), 4, axis=0) * 0.1 + 0.01 * rng.normal(size=(12, 1000))
    assert kmeans(request(weights, clusters="3")).groups == tuple(tuple(range(s, s + 4)) for s in (10, 14, 18))


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_the_points_are_as_far_apart_as_the_models(count: int, seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=(count, 5)) + 3
    points = embedded(weights @ weights.T)
    between = np.linalg.norm(weights[:, None] - weights, axis=2)
    assert np.linalg.norm(points[:, None] - points, axis=2) == pytest.approx(between, abs=1e-6)
    assert points.mean(axis=0) == pytest.approx(0, abs=1e-6)


def test_the_best_of_the_restarts_is_kept() -> None:
    weights = np.random.default_rng(0).normal(size=(60, 2))

    def spread(restarts: int, seed: int) -> float:
        labels = clustered(weights @ weights.T, 8, restarts, seed)
        return sum(float(((own - own.mean(axis=0)) ** 2).sum()) for own in (weights[labels == c] for c in set(labels)))

    assert max(spread(30, seed) for seed in range(5)) < np.mean([spread(1, seed) for seed in range(10)])


def test_draws_follow_the_seed() -> None:
    weights = np.random.default_rng(0).normal(size=(30, 2))
    found = {kmeans(request(weights, restarts="1", seed=seed)).groups for seed in range(6)}
    assert len(found) > 1
    assert kmeans(request(weights, restarts="1", seed=4)) == kmeans(request(weights, restarts="1", seed=4))


def test_there_may_be_fewer_models_than_clusters() -> None:
    assert kmeans(request(np.ones((5, 3)))).groups == (tuple(range(10, 15)),)
    assert kmeans(request([(1, 0)])).groups == ((10,),)


# --- later rounds, and who is not known


def test_settled_groups_stay_and_need_no_matrix() -> None:
    settled = ((10, 11), (12, 13))
    assert kmeans(request(TWO, settled, clusters="2")).groups == settled
    assert kmeans(request(settled=settled)).groups == settled


def test_a_newcomer_joins_the_nearest_centre() -> None:
    weights = [(0, 0), (4, 0), (9, 0), (1.9, 0), (6, 0)]
    # Centres at 2 and 9, of which 6 is nearer to the second, though nearest to a client of the first.
    assert kmeans(request(weights, ((10, 11), (12,)))).groups == ((10, 11, 13), (12, 14))


def test_newcomers_do_not_draw_the_centres_after_them() -> None:
    weights = [(0, 0), (10, 0), (5.1, 0), (4.9, 0)]
    assert kmeans(request(weights, ((10,), (11,)))).groups == ((10, 13), (11, 12))


def test_a_newcomer_of_whom_nothing_is_known_joins_the_smallest() -> None:
    assert kmeans(request(settled=((10, 11), (12,)))).groups == ((10, 11), (12, 13))
    weights = [(0, 0), (0, 0), (9, 0), (0, 0.1), (NAN, NAN), (NAN, NAN)]
    assert kmeans(request(weights, ((10, 11), (12,)))).groups == ((10, 11, 13), (12, 14, 15))


def test_newcomers_are_placed_in_the_order_of_their_ids() -> None:
    asked = request(settled=((7,), (8, 9)), gram=np.full((6, 6), NAN), clients=(7, 8, 9, 3, 2, 1))
    # 1 makes both as large, 2 joins the first of them, 3 the then smaller.
    assert kmeans(asked).groups == ((7, 2, 1), (8, 9, 3))


def test_centres_are_those_of_the_members_that_are_known() -> None:
    weights = [(NAN, NAN), (0, 0), (9, 0), (1, 0)]
    assert kmeans(request(weights, ((10, 11), (12,)))).groups == ((10, 11, 13), (12,))
    weights = [(NAN, NAN), (9, 0), (0, 0), (1, 0)]
    assert kmeans(request(weights, ((10,), (11, 12)))).groups == ((10,), (11, 12, 13))


def test_a_client_without_weights_joins_the_smallest_cluster() -> None:
    weights = [(NAN, NAN), (0, 0), (5, 5), (0.2, 0)]
    assert kmeans(request(weights, clusters="2")).groups == ((10, 12), (11, 13))


# --- what cannot be used


def test_a_missing_matrix_is_refused_where_there_are_no_groups_yet() -> None:
    with pytest.raises(
        ConfigError, match=r"weights \(matrix gram\); let clients report what it is made from \(scheme kmeans\)"
    ):
        kmeans(request())


def test_weights_of_nobody_are_refused() -> None:
    with pytest.raises(ConfigError, match="no client has reported its weights; use grouping random"):
        kmeans(request(np.full((3, 2), NAN)))


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"grouping kmeans: matrix gram has shape \(3, 2\) for 3 clients"):
        kmeans(request(gram=np.zeros((3, 2))))


def test_entries_that_are_no_inner_products_are_refused() -> None:
    with pytest.raises(ConfigError, match="no inner products of weights"):
        kmeans(request(gram=np.array([(1, NAN), (NAN, 1)])))


@pytest.mark.parametrize(("name", "value"), [("clusters", "0"), ("restarts", "some")])
@pytest.mark.parametrize("settled", [(), ((10, 11, 12, 13),)])
def test_a_bad_value_is_refused_in_any_round(name: str, value: Any, settled: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{value}'"):
        kmeans(request(TWO, settled, **{name: value}))
