"""Options of training algorithms, as text and as numbers."""

from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.local_training import TRAININGS, training_options


@pytest.mark.parametrize("algorithm", TRAININGS)
def test_what_is_not_given_has_its_default(algorithm: str) -> None:
    assert training_options(algorithm, {}) == TRAININGS[algorithm]


def test_what_is_given_counts_in_the_kind_of_its_default() -> None:
    found = training_options("pfedme", {"personal_steps": "7", "lambda": "15"})
    assert found == {"lambda": 15.0, "personal_steps": 7, "personal_rate": 0.1}
    assert [type(value) for value in found.values()] == [float, int, float]
    assert training_options("fedprox", {"mu": "0"}) == {"mu": 0.0}


@pytest.mark.parametrize("algorithm", TRAININGS)
def test_an_unknown_option_is_refused_with_those_that_are_known(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=f"training {algorithm} has no option 'momentum'") as error:
        training_options(algorithm, {"momentum": "0.9"})
    assert all(name in str(error.value.remedy) for name in TRAININGS[algorithm] or ["none"])


@pytest.mark.parametrize(
    ("algorithm", "name", "text"),
    [
        *(("fedprox", "mu", text) for text in ("-0.1", "nan", "inf", "1e999", "", "much", "0,1")),
        *(("finetune", "steps", text) for text in ("0", "-1", "1.5", "2.0", "1e3", "", "nan")),
        ("pfedme", "personal_steps", "0"),
        ("pfedme", "personal_rate", "-1"),
        ("ditto", "lambda", "-1"),
    ],
)
def test_a_value_that_cannot_be_is_refused(algorithm: str, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{text}'"):
        training_options(algorithm, {name: text})
