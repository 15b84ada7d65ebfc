from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import described, read_options, setting
from fedgsp.settings.per_client import PerClient


@dataclass(frozen=True, slots=True)
class Options:
    rate: float = setting(0.5, "step size", above=0, below=1)
    groups: int | None = setting(None, "number of groups", least=1)
    start: str = setting("uniform", "first centres", choices=("uniform", "spread"))
    shuffle: bool = setting(False, "draw the order anew")
    pull: float = setting(0.1, "strength of the pull", name="lambda", least=0)
    alpha: PerClient = setting(PerClient(1.0), "preference for more data", least=0)


def read(**given: str) -> Options:
    return read_options(Options, "grouping test", {name.replace("__", "."): text for name, text in given.items()})


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert read() == Options()


def test_texts_become_values_of_the_described_types() -> None:
    found = read(rate="0.25", groups="3", start="spread", shuffle="yes")
    assert found == Options(rate=0.25, groups=3, start="spread", shuffle=True)


def test_an_option_may_be_written_by_a_name_that_python_reserves() -> None:
    assert read_options(Options, "training test", {"lambda": "2"}).pull == 2


def test_single_clients_may_have_a_value_of_their_own() -> None:
    alpha = read(alpha="2", alpha__3="10").alpha
    assert alpha.of((2, 3)).tolist() == [2, 10]
    assert read(alpha__3="10").alpha.of((2, 3)).tolist() == [1, 10]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("rate", "1", "a number above 0 and below 1"),
        ("rate", "nan", "a number above 0 and below 1"),
        ("rate", "x", "a number above 0 and below 1"),
        ("groups", "0", "a whole number of at least 1"),
        ("groups", "1.5", "a whole number of at least 1"),
        ("groups", str(2**31), "a whole number of at least 1"),
        ("start", "other", "one of uniform, spread"),
        ("shuffle", "perhaps", "true or false"),
        ("alpha", "-1", "of at least 0"),
        ("alpha__3", "-1", "of at least 0"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_wanted(name: str, text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**{name: text})
    assert f"grouping test: option {name.replace('__', '.')} is {text!r}" in caught.value.what
    assert wanted in caught.value.remedy


@pytest.mark.parametrize("name", ["rat", "rate.3", "alpha.x", "alpha.03", "alpha."])
def test_an_unknown_option_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="has no option") as caught:
        read_options(Options, "grouping test", {name: "1"})
    assert "alpha" in caught.value.remedy


def test_a_description_knows_what_its_field_says() -> None:
    rate = described(Options)["rate"]
    assert (rate.name, rate.type, rate.default, rate.help) == ("rate", float, 0.5, "step size")
    assert described(Options)["groups"].optional
