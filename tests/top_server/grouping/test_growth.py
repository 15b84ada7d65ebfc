from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import parts
from fedgsp.errors import ConfigError, RunError
from fedgsp.settings.checks import check
from fedgsp.settings.run import RunConfig
from top_server.choosing import NAMES, choose
from top_server.cli import listed
from top_server.grouping.round_size import GROWTHS, group_count
from top_server.sizes import groups_wanted

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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with growths."""
    code = "from top_server.grouping.round_size import Growth\n"
    code += "def stairs(number, alpha):\n    return 1 + alpha * ((number - 1) // 2)\n"
    code += "STAIRS = Growth(help='two rounds on each stair', code='steps_of_tests:stairs')\n"
    code += "LESS = Growth(help='shrinks', code=lambda number, alpha: 1.5 - number)\n"
    code += "FAILS = Growth(help='raises', code='steps_of_tests:fails')\n"
    code += "def fails(number, alpha):\n    return number[0]\n"
    (tmp_path / "steps_of_tests.py").write_text(code, encoding="utf-8")
    about = tmp_path / "steps-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: steps\nVersion: 1\n", encoding="utf-8")
    points = "".join(f"{name} = steps_of_tests:{name.upper()}\n" for name in ("stairs", "less", "fails"))
    (about / "entry_points.txt").write_text(f"[fedgsp.growths]\n{points}absent = nowhere:X\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    cached = (parts.load, parts._installed, parts._of_group)
    for one in cached:
        one.cache_clear()
    yield
    for one in cached:
        one.cache_clear()
    sys.modules.pop("steps_of_tests", None)


@pytest.mark.usefixtures("package")
def test_a_growth_of_a_package_gives_the_groups_of_a_run() -> None:
    assert counts("stairs", 2, 10, 5) == [10, 10, 30, 30, 50]
    config = RunConfig(growth="stairs", alpha=1.0, beta=2, smallest_group=1)
    check(config, NAMES)
    scheme = choose(config)
    assert [groups_wanted(config, scheme, number, 24) for number in (1, 3, 5)] == [2, 4, 6]
    assert "  stairs [steps 1]: two rounds on each stair" in list(listed("growth"))
    with pytest.raises(RunError, match=r"growth less of package steps 1 gives -0.5 in round 2"):
        group_count("less", 2, 2, 10, CLIENTS)
    with pytest.raises(RunError, match=r"growth fails of package steps 1 raised TypeError"):
        group_count("fails", 2, 2, 10, CLIENTS)
    with pytest.raises(ConfigError, match=r"growth absent of package steps 1 cannot be loaded from nowhere:X"):
        choose(RunConfig(growth="absent"))
