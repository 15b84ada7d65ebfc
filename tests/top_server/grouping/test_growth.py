from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from top_server.grouping.round_size import GROWTHS, group_count

CLIENTS = 368


def counts(name: str, alpha: float, beta: int, rounds: int) -> list[int]:
    return [group_count(name, r, alpha, beta, CLIENTS) for r in range(1, rounds + 1)]


def first_rounds(values: list[int]) -> dict[int, int]:
    return {r: value for r, value in enumerate(values, start=1) if r == 1 or value != values[r - 2]}


def test_log_grows_as_in_the_paper() -> None:
    values = counts("log", 2, 10, 500)
    assert values[:12] == [10, 20, 30, 30, 40, 40, 40, 50, 50, 50, 50, 50]
    assert first_rounds(values) == {
        1: 10, 2: 20, 3: 30, 5: 40, 8: 50, 13: 60, 21: 70, 34: 80, 55: 90, 91: 100, 149: 110, 245: 120, 404: 130,
    }  # fmt: skip
    assert values[-1] == 130


def test_linear_grows_until_every_client_is_a_group() -> None:
    values = counts("linear", 2, 10, 25)
    assert values[:18] == list(range(10, 351, 20))
    assert values[18:] == [CLIENTS] * 7


def test_linear_with_a_fraction_steps_at_the_exact_round() -> None:
    values = counts("linear", 0.1, 10, 101)
    assert {r: values[r - 1] for r in (10, 11, 20, 21, 101)} == {10: 10, 11: 20, 20: 20, 21: 30, 101: 110}


def test_exp_grows_by_powers() -> None:
    assert counts("exp", 2, 10, 6) == [10, 30, 90, 270, 368, 368]
    values = counts("exp", 0.1, 10, 40)
    assert values[:8] == [10] * 8
    assert {r: values[r - 1] for r in (9, 20, 30, 38, 39)} == {9: 20, 20: 60, 30: 150, 38: 340, 39: 368}


def test_constant_is_beta_whatever_alpha() -> None:
    assert counts("constant", 0.5, 10, 3) == counts("constant", 9, 10, 3) == [10, 10, 10]


@pytest.mark.parametrize("name", GROWTHS)
@given(
    round_number=st.integers(1, 10**9),
    alpha=st.floats(1e-6, 1e300),
    beta=st.integers(1, 10**6),
    clients=st.integers(1, 10**6),
)
def test_a_count_is_within_one_and_the_clients_however_late_the_round(
    name: str, round_number: int, alpha: float, beta: int, clients: int
) -> None:
    now, then = (group_count(name, r, alpha, beta, clients) for r in (round_number, round_number + 1))
    assert 1 <= now <= then <= clients
    assert group_count(name, 1, alpha, beta, clients) == min(beta, clients)


def test_an_unknown_growth_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'cubic'.*linear, log, exp, constant"):
        group_count("cubic", 1, 2, 10, CLIENTS)
