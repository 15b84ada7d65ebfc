"""Options of trainings, as text and as numbers."""

from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import described, values_of
from fedgsp.trainings import TRAININGS


def test_what_is_given_counts_in_the_kind_of_its_default() -> None:
    found = values_of(TRAININGS["pfedme"].read({"personal_steps": "7", "lambda": "15"}))
    assert found == {"lambda": 15.0, "personal_steps": 7, "personal_rate": 0.1}
    assert [type(value) for value in found.values()] == [float, int, float]
    assert values_of(TRAININGS["fedprox"].read({"mu": "0"})) == {"mu": 0.0}


@pytest.mark.parametrize("training", TRAININGS.built_in)
def test_an_unknown_option_is_refused_with_those_that_are_known(training: str) -> None:
    with pytest.raises(ConfigError, match=f"training {training} has no option 'momentum'") as error:
        TRAININGS[training].read({"momentum": "0.9"})
    known = [one.name for one in described(TRAININGS[training].options).values()]
    assert all(name in str(error.value.remedy) for name in known or ["none"])


@pytest.mark.parametrize(
    ("training", "name", "text"),
    [
        *(("fedprox", "mu", text) for text in ("-0.1", "nan", "inf", "1e999", "", "much", "0,1")),
        *(("finetune", "steps", text) for text in ("0", "-1", "1.5", "2.0", "1e3", "", "nan")),
        ("pfedme", "personal_steps", "0"),
        ("pfedme", "personal_rate", "-1"),
        ("ditto", "lambda", "-1"),
    ],
)
def test_a_value_that_cannot_be_is_refused(training: str, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{text}'"):
        TRAININGS[training].read({name: text})
