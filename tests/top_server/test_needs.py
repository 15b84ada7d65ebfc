"""A scheme that needs what the task lacks is refused, with schemes that do not need it."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, CLASS_LABELS, LACKS
from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.needs import check_task
from top_server.schemes import SCHEMES


def refused(lacks: set[str], **given: Any) -> ConfigError | None:
    config = RunConfig(**given)
    try:
        check_task(config, choose(config), lacks)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("given", "needed", "what"),
    [
        ({"scheme": "fedgsp"}, CLASS_COUNTS, "profile histograms of scheme fedgsp needs class counts"),
        ({"scheme": "naive-gsp"}, CLASS_COUNTS, "profile histograms of scheme naive-gsp needs class counts"),
        ({"scheme": "fedcollab"}, CLASS_LABELS, "profile distances of scheme fedcollab needs class labels"),
        ({"scheme": "fedfa"}, ACCURACY, "profile training-accuracy of scheme fedfa needs accuracy"),
        (
            {"scheme": "ida", "aggregation_option": {"times": "intrac"}},
            ACCURACY,
            "aggregation ida of scheme ida needs accuracy",
        ),
    ],
)
def test_what_the_task_lacks_is_named_with_schemes_that_do_without(
    given: dict[str, Any], needed: str, what: str
) -> None:
    error = refused({needed}, **given)
    assert error is not None
    assert error.what == f"{what}, and the task has none"
    assert refused(set(LACKS - {needed}), **given) is None
    named = error.remedy.split("choose --scheme ")[1].replace(" or ", ", ").split(", ")
    for scheme in SCHEMES.built_in:
        assert (refused({needed}, scheme=scheme) is None) == (scheme in named), scheme


@pytest.mark.parametrize("scheme", ["hcct", "fedavg", "ifca", "global", "independent", "fesem", "fedprox"])
def test_schemes_that_read_models_and_losses_take_every_task(scheme: str) -> None:
    assert refused(set(LACKS), scheme=scheme) is None


def test_the_options_of_a_part_decide_what_it_needs() -> None:
    assert refused({ACCURACY}, scheme="ida") is None
