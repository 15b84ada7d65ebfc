from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.coalitions import objective

fedcollab = GROUPINGS["fedcollab"]

NAN = float("nan")


def request(
    distances: object = None,
    sizes: tuple[int, ...] = (),
    settled: tuple[tuple[int, ...], ...] = (),
    count: int = 4,
    seed: int = 0,
    clients: tuple[int, ...] = (),
    **options: str,
) -> GroupingRequest:
    """Clients 10, 11, ... of 100 samples each."""
    matrices = {} if distances is None else {"distances": np.array(distances, np.float64)}
    count = len(matrices["distances"]) if matrices else count
    return GroupingRequest(
        round=1,
        groups=1,
        seed=seed,
        clients=clients or tuple(range(10, 10 + count)),
        sizes=np.array(sizes or [100] * count),
        matrices=matrices,
        options=options,
        settled=settled,
    )


PAIRS = np.array([(0, 1, 0.1, 1), (1, 0, 1, 0.1), (0.1, 1, 0, 1), (1, 0.1, 1, 0)])


def types(between: list[list[float]]) -> np.ndarray:
    """Four types of five clients."""
    return np.array(between).repeat(5, axis=0).repeat(5, axis=1)


LABEL = types([[0, 0.157, 1, 1], [0.157, 0, 1, 1], [1, 1, 0.13, 0.286], [1, 1, 0.286, 0.157]])
LABEL_SIZES = (2100,) * 10 + (14,) * 10


def test_alike_clients_are_together() -> None:
    plan = fedcollab(request(PAIRS))
    assert plan.groups == ((10, 12), (11, 13))
    assert plan.idle == ()


def test_c_draws_clients_together() -> None:
    assert len(fedcollab(request(PAIRS, c="0")).groups) == 4
    assert len(fedcollab(request(PAIRS, c="10")).groups) == 2
    assert len(fedcollab(request(PAIRS, c="100")).groups) == 1


def test_the_label_shift_has_its_published_structure() -> None:
    groups = fedcollab(request(LABEL, LABEL_SIZES)).groups
    assert groups == (tuple(range(10, 15)), tuple(range(15, 20)), tuple(range(20, 30)))


def test_without_quantities_the_label_shift_falls_into_its_types() -> None:
    groups = fedcollab(request(LABEL, LABEL_SIZES, ignore="quantities")).groups
    assert groups == tuple(tuple(range(start, start + 5)) for start in (10, 15, 20, 25))


def test_ignored_quantities_keep_the_number_of_all_samples() -> None:
    # Two clients of 100 samples on average join below 10 * 0.058579.
    for distance, together in [(0.58, 1), (0.59, 2)]:
        apart = [(0, distance), (distance, 0)]
        assert len(fedcollab(request(apart, (10, 190), ignore="quantities")).groups) == together


def test_without_distances_all_pairs_are_as_far_apart_as_the_mean() -> None:
    found = fedcollab(request(LABEL, LABEL_SIZES, ignore="distances"))
    mean = np.full((20, 20), LABEL[~np.eye(20, dtype=bool)].mean())
    assert found.groups == fedcollab(request(mean, LABEL_SIZES)).groups
    assert found.groups != fedcollab(request(LABEL, LABEL_SIZES)).groups


def test_values_below_0_are_0_before_the_mean_is_taken() -> None:
    # 2 / 6 without the negative pairs: just within reach of a group of three.
    distances = np.array([(0, -0.9, 1), (-0.9, 0, -0.9), (1, -0.9, 0)])
    groups = [len(fedcollab(request(distances, ignore="distances", c=c)).groups) for c in ("5.2", "5.3")]
    whole = [objective(np.full((3, 3), 1 / 3), np.full(3, 100), c, [[0, 1, 2]]) < 3 * c / 10 for c in (5.2, 5.3)]
    assert groups == [3, 1]
    assert whole == [False, True]


def test_few_restarts_are_given_and_their_draws_follow_the_seed() -> None:
    found = {fedcollab(request(LABEL, LABEL_SIZES, restarts="1", seed=seed)).groups for seed in range(8)}
    assert len(found) > 1
    assert fedcollab(request(LABEL, LABEL_SIZES, restarts="1", seed=3)) == fedcollab(
        request(LABEL, LABEL_SIZES, restarts="1", seed=3)
    )


# --- what is not known


def test_a_pair_that_could_not_be_trained_is_as_far_apart_as_can_be() -> None:
    unknown = np.where(np.eye(4, dtype=bool), NAN, np.where(PAIRS == 1, NAN, PAIRS))
    for c in ("1", "10", "15", "20", "30", "40"):
        assert fedcollab(request(unknown, c=c)).groups == fedcollab(request(PAIRS, c=c)).groups
    assert fedcollab(request(unknown)).groups == ((10, 12), (11, 13))


def test_a_client_without_samples_is_alone_and_counts_nowhere() -> None:
    assert fedcollab(request(np.zeros((3, 3)), (5, 0, 5))).groups == ((10, 12), (11,))
    assert fedcollab(request(np.full((3, 3), NAN), (0, 0, 0))).groups == ((10,), (11,), (12,))
    for distance, together in [(0.58, 1), (0.59, 2)]:
        apart = [(0, distance, 0), (distance, 0, 0), (0, 0, 0)]
        assert len(fedcollab(request(apart, (10, 190, 0), ignore="quantities")).groups) == together + 1


# --- newcomers


def test_settled_groups_stay_whatever_the_distances() -> None:
    assert fedcollab(request(PAIRS, settled=((10, 11), (12,), (13,)))).groups == ((10, 11), (12,), (13,))
    assert fedcollab(request(settled=((11, 13), (10, 12)))).groups == ((10, 12), (11, 13))


def test_a_newcomer_joins_the_group_of_smallest_objective_or_nobody() -> None:
    assert fedcollab(request(PAIRS, settled=((10,), (11,), (12,)))).groups == ((10,), (11, 13), (12,))
    assert fedcollab(request(PAIRS, settled=((10,), (11,), (12,)), c="0")).groups == ((10,), (11,), (12,), (13,))
    assert fedcollab(request(PAIRS, settled=((11, 12, 13),), c="1000")).groups == ((10, 11, 12, 13),)


def test_newcomers_are_placed_one_by_one_in_the_order_of_their_ids() -> None:
    # The one in the middle is near enough to either of the others, which are too far apart to be all together.
    line = np.array([(0, 0.3, 0.9, 1), (0.3, 0, 0.3, 1), (0.9, 0.3, 0, 1), (1, 1, 1, 0)])
    assert fedcollab(request(line, settled=((13,),), c="6")).groups == ((10, 11), (12,), (13,))
    backwards = request(line, settled=((13,),), c="6", clients=(12, 11, 10, 13))
    assert fedcollab(backwards).groups == ((12,), (11, 10), (13,))


def test_members_that_are_away_count_as_those_who_are_there_for_who_joins_their_coalition() -> None:
    """Clients 10 to 12 are alike, and 13 is half as far as can be from each, or like them."""
    for distance, groups in ((0.5, ((10, 11, 12), (13,))), (0.0, ((10, 11, 12, 13),))):
        apart = np.full((4, 4), distance)
        apart[:3, :3] = 0
        all_there = request(apart, settled=((10, 11, 12),))
        assert fedcollab(all_there).groups == groups
        apart[1:3, 3] = apart[3, 1:3] = NAN
        some_away = dataclasses.replace(all_there, matrices={"distances": apart}, away=(11, 12))
        assert fedcollab(some_away).groups == groups
        # Of clients that are there and could not be compared, nothing is assumed.
        assert fedcollab(dataclasses.replace(some_away, away=())).groups == ((10, 11, 12), (13,))
        apart[0, 3] = apart[3, 0] = NAN
        nobody_there = dataclasses.replace(some_away, away=(10, 11, 12))
        assert fedcollab(nobody_there).groups == ((10, 11, 12), (13,))
    only = np.array([(0, 0.5), (0.5, 0)])  # as if there were no other members
    assert fedcollab(request(only, settled=((10,),))).groups == ((10, 11),)


def test_a_newcomer_without_samples_is_alone_and_nobody_joins_it() -> None:
    settled = ((10,), (11,))
    assert fedcollab(request(np.zeros((4, 4)), (5, 0, 0, 5), settled)).groups == ((10, 13), (11,), (12,))
    assert fedcollab(request(np.zeros((3, 3)), (0, 0, 5), ((10,),))).groups == ((10,), (11,), (12,))


# --- what cannot be used


def test_a_missing_matrix_is_refused_where_it_is_needed() -> None:
    for settled in [(), ((10, 11),)]:
        with pytest.raises(ConfigError, match=r"\(matrix distances\); let clients report what it is made from"):
            fedcollab(request(settled=settled))


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \(3, 2\) for 3 clients; give it a row and a column per client"):
        fedcollab(request(np.zeros((3, 2))))


@pytest.mark.parametrize("far", [np.inf, 1e300, -2])
def test_distances_that_cannot_be_are_refused(far: float) -> None:
    with pytest.raises(ConfigError, match=r"has entries beyond -1\.\.1; give numbers from 0 to 1, and NaN"):
        fedcollab(request([(0, far), (0, 0)]))


@pytest.mark.parametrize(("name", "value"), [("c", "-1"), ("restarts", "0"), ("ignore", "everything")])
@pytest.mark.parametrize("settled", [(), ((10, 11, 12, 13),)])
def test_a_bad_value_is_refused_in_any_round(name: str, value: Any, settled: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{value}'"):
        fedcollab(request(PAIRS, settled=settled, **{name: value}))
