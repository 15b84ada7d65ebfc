from __future__ import annotations

from collections.abc import Callable

import pytest

from fedgsp.errors import ConfigError
from top_server.grouping.options import Options

ACCEPTED = ("mode", "rounds", "rate", "raw")


def test_options_have_defaults() -> None:
    options = Options("icg", {}, ACCEPTED)
    assert options.choice("mode", ("exact", "all")) == "exact"
    assert options.integer("rounds", 10) == 10
    assert options.number("rate", 0.5) == 0.5
    assert options.flag("raw", True) is True


def test_options_are_read_with_their_type() -> None:
    options = Options("icg", {"mode": "all", "rounds": "3", "rate": "1e-3", "raw": "false"}, ACCEPTED)
    assert options.choice("mode", ("exact", "all")) == "all"
    assert options.integer("rounds", 10) == 3
    assert options.number("rate", 0.5) == 0.001
    assert options.flag("raw", True) is False
    assert Options("icg", {"raw": "Yes"}, ACCEPTED).flag("raw", False) is True


def test_an_unknown_option_is_refused_with_the_accepted_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"grouping icg has no option 'mood'; did you mean 'mode'\? It accepts mode, rounds"
    ):
        Options("icg", {"mood": "good"}, ACCEPTED)
    with pytest.raises(ConfigError, match="it accepts none"):
        Options("single", {"mode": "exact"}, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "most"), ("mode", ""),
        ("rounds", "0"), ("rounds", "2.5"), ("rounds", "many"),
        ("rate", "-1"), ("rate", "nan"), ("rate", "inf"), ("rate", "x"),
        ("raw", "maybe"), ("raw", ""),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_what_is_wanted(name: str, value: str) -> None:
    options = Options("icg", {name: value}, ACCEPTED)
    read: dict[str, Callable[[], object]] = {
        "mode": lambda: options.choice("mode", ("exact", "all")),
        "rounds": lambda: options.integer("rounds", 10),
        "rate": lambda: options.number("rate", 0.5),
        "raw": lambda: options.flag("raw", True),
    }
    with pytest.raises(ConfigError, match=f"grouping icg: option {name} is '{value}'; give "):
        read[name]()


def test_a_client_may_have_a_number_of_its_own() -> None:
    options = Options("hcct", {"alpha": "2", "alpha.7": "30", "alpha.0": "0"}, ("alpha", "alpha.ID"))
    assert options.number_per_client("alpha", 1.0).of((0, 3, 7)).tolist() == [0, 2, 30]
    assert Options("hcct", {}, ("alpha.ID",)).number_per_client("alpha", 1.0).of((3, 7)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "name", ["alpha.x", "alpha.-1", "alpha.07", "alpha.\u00b2", "alpha.ID", "alpha.", "beta.7", ""]
)
def test_an_option_of_no_client_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has no option .* [Ii]t accepts alpha, alpha\.ID"):
        Options("hcct", {name: "1"}, ("alpha", "alpha.ID"))
    with pytest.raises(ConfigError, match=r"has no option 'mode\.7'"):
        Options("icg", {"mode.7": "all"}, ("mode",))


def test_a_bad_number_of_one_client_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"option alpha\.7 is '-1'; give a number of at least 0"):
        Options("hcct", {"alpha.7": "-1"}, ("alpha.ID",)).number_per_client("alpha", 1.0)
