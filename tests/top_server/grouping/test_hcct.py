from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest

hcct = GROUPINGS["hcct"]


NAN = float("nan")


def request(
    updates: object = None,
    gram: NDArray[np.floating] | None = None,
    sizes: tuple[int, ...] = (),
    round_number: int = 2,
    newcomers: tuple[int, ...] = (),
    **options: str,
) -> GroupingRequest:
    """Clients 10, 11, ... of 100 samples each, whose updates are the rows given, or whose products are `gram`."""
    if updates is not None:
        rows = np.array(updates, np.float64)
        gram = rows @ rows.T
    count = 4 if gram is None else len(gram)
    return GroupingRequest(
        round=round_number,
        groups=2,
        seed=0,
        clients=tuple(range(10, 10 + count)),
        sizes=np.array(sizes or [100] * count),
        matrices={} if gram is None else {"gram": gram},
        options={name.replace("_of_", "."): value for name, value in options.items()},
        newcomers=newcomers,
    )


PAIRS = [(1, 0), (0, 1), (1, 0.01), (0.01, 1)]


def test_alike_clients_are_together_in_the_order_of_their_smallest() -> None:
    plan = hcct(request(PAIRS))
    assert plan.groups == ((10, 12), (11, 13))
    assert plan.idle == ()


def test_alpha_draws_clients_together() -> None:
    assert len(hcct(request(PAIRS, alpha="0")).groups) == 4
    assert len(hcct(request(PAIRS, alpha="1")).groups) == 2
    assert len(hcct(request(PAIRS, alpha="300")).groups) == 1


def test_one_client_may_have_an_alpha_of_its_own() -> None:
    three = np.eye(3)
    assert hcct(request(three, alpha="1")).groups == ((10,), (11,), (12,))
    assert hcct(request(three, alpha="1", alpha_of_12="200")).groups == ((10, 12), (11,))
    assert hcct(request(three, alpha="1", alpha_of_99="200")).groups == ((10,), (11,), (12,))


def test_a_number_of_groups_can_be_forced() -> None:
    for wanted in range(1, 5):
        assert len(hcct(request(PAIRS, groups=str(wanted))).groups) == wanted


@pytest.mark.parametrize("name", ["alpha_of_x", "alpha_of_-1", "alpha_of_01", "alpha_of_ID", "alpha_of_", "beta_of_1"])
def test_what_names_no_client_is_no_option(name: str) -> None:
    options: dict[str, Any] = {name: "1"}
    with pytest.raises(ConfigError, match=r"no option '(alpha|beta)\..*[Ii]ts options are alpha, alpha\.ID, groups"):
        hcct(request(PAIRS, **options))


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", "-1"), ("alpha", "inf"), ("alpha_of_11", "much"), ("groups", "0"), ("first_epoch", "none")],
)
@pytest.mark.parametrize("round_number", [1, 2])
def test_a_bad_value_is_refused_in_any_round(name: str, value: Any, round_number: int) -> None:
    with pytest.raises(ConfigError, match=f"option {name.replace('_of_', '.')} is '{value}'"):
        hcct(request(PAIRS if round_number == 2 else None, round_number=round_number, **{name: value}))


# --- what is not known


def test_before_the_first_updates_all_are_alone_or_all_together() -> None:
    assert hcct(request(round_number=1)).groups == ((10,), (11,), (12,), (13,))
    assert hcct(request(round_number=1, first_epoch="singletons")).groups == ((10,), (11,), (12,), (13,))
    assert hcct(request(round_number=1, first_epoch="all")).groups == ((10, 11, 12, 13),)


def test_updates_that_are_known_in_the_first_round_are_used() -> None:
    assert hcct(request(PAIRS, round_number=1, first_epoch="all")).groups == ((10, 12), (11, 13))


def test_a_client_without_an_update_is_alone_and_disturbs_nobody() -> None:
    updates = [(1, 0), (NAN, NAN), (0, 1), (1, 0.01), (0.01, 1)]
    assert hcct(request(updates)).groups == ((10, 13), (11,), (12, 14))
    assert hcct(request(updates, groups="1")).groups == ((10, 12, 13, 14), (11,))


def test_clients_that_all_lack_an_update_are_all_alone() -> None:
    assert hcct(request(np.full((3, 2), NAN))).groups == ((10,), (11,), (12,))


def test_a_client_without_samples_is_alone() -> None:
    assert hcct(request(np.ones((3, 1)), sizes=(5, 0, 5))).groups == ((10, 12), (11,))


# --- newcomers


def test_newcomers_join_the_groups_of_the_others() -> None:
    updates = [(1, 0.02), (1, 0), (0, 1), (1, 0.01), (0.01, 1)]
    assert hcct(request(updates, newcomers=(10,))).groups == ((10, 11, 13), (12, 14))


def test_a_newcomer_that_gains_nothing_is_alone_and_the_next_may_join_it() -> None:
    updates = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0.01, 1)]
    assert hcct(request(updates[:3], newcomers=(12,))).groups == ((10,), (11,), (12,))
    assert hcct(request(updates, newcomers=(13, 12))).groups == ((10,), (11,), (12, 13))


def test_newcomers_are_placed_in_the_order_of_their_ids() -> None:
    # The middle one is drawn to either of the others, which would not have each other.
    angles = np.radians([0, 40, 78])
    updates = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for newcomers in [(10, 11, 12), (12, 11, 10)]:
        assert hcct(request(updates, newcomers=newcomers, alpha="15")).groups == ((10, 11), (12,))
    assert hcct(request(updates, alpha="15")).groups == ((10,), (11, 12))


def test_a_newcomer_changes_no_group_by_drawing_others_together() -> None:
    updates = np.eye(4)
    assert len(hcct(request(updates, alpha_of_13="1000")).groups) == 1
    assert len(hcct(request(updates, newcomers=(13,), alpha_of_13="1000")).groups) == 3


def test_a_newcomer_without_an_update_is_alone() -> None:
    assert hcct(request([(1, 0), (NAN, 0), (1, 0)], newcomers=(11,))).groups == ((10, 12), (11,))


# --- evidence that cannot be used


def test_a_missing_matrix_is_refused_after_the_first_round() -> None:
    with pytest.raises(ConfigError, match=r"needs the inner products .* \(matrix gram\); let clients report"):
        hcct(request())


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape \(3, 2\) for 3 clients; give it a row and a column per client"):
        hcct(request(gram=np.ones((3, 2))))


@pytest.mark.parametrize("bad", [NAN, np.inf])
def test_a_matrix_with_a_hole_is_refused(bad: float) -> None:
    gram = np.ones((3, 3))
    gram[0, 2] = gram[2, 0] = bad
    with pytest.raises(ConfigError, match="no inner products of updates; give finite numbers"):
        hcct(request(gram=gram))


def test_a_negative_square_is_refused() -> None:
    with pytest.raises(ConfigError, match="no inner products"):
        hcct(request(gram=np.diag([1.0, -1.0])))


def test_integers_will_do() -> None:
    plan = hcct(request(gram=np.array([[4, 0, 4], [0, 4, 0], [4, 0, 4]])))  # as a grouping service may be given them
    assert plan.groups == ((10, 12), (11,))
