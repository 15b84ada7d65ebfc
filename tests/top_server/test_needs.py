"""A scheme that needs what the task lacks is refused, with schemes that do not need it."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, CLASS_LABELS, LACKS, ONE_OUTPUT
from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.needs import check_task
from top_server.schemes import SCHEMES


def refused(lacks: set[str], why: str = "", **given: Any) -> ConfigError | None:
    config = RunConfig(**given)
    try:
        check_task(config, choose(config), dict.fromkeys(lacks, why))
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("given", "needed", "what"),
    [
        ({"scheme": "fedgsp"}, CLASS_COUNTS, "profile histograms of scheme fedgsp needs class counts"),
        ({"scheme": "naive-gsp"}, CLASS_COUNTS, "profile histograms of scheme naive-gsp needs class counts"),
        ({"scheme": "fedcollab"}, CLASS_LABELS, "profile distances of scheme fedcollab needs class labels"),
        ({"scheme": "fedmmd"}, ONE_OUTPUT, "training fedmmd of scheme fedmmd needs a model that returns one tensor"),
        ({"scheme": "fedfa"}, ACCURACY, "profile training-accuracy of scheme fedfa needs accuracy"),
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


@pytest.mark.parametrize(
    ("given", "what", "left_out"),
    [
        ({"aggregation_option": {"times": "intrac"}}, "aggregation ida", "--aggregation-option times"),
        ({"profile": "training-accuracy"}, "profile training-accuracy", "--profile"),
    ],
)
def test_a_setting_without_which_the_scheme_needs_less_is_to_be_left_out(
    given: dict[str, Any], what: str, left_out: str
) -> None:
    assert refused({ACCURACY}, scheme="ida") is None
    error = refused({ACCURACY}, scheme="ida", **given)
    assert error is not None
    assert error.what == f"{what} of scheme ida needs accuracy, and the task has none"
    assert error.remedy == f"override correct() in the task, or leave out {left_out}"


def test_fedmmd_takes_a_model_with_several_outputs_if_it_compares_features() -> None:
    error = refused({ONE_OUTPUT}, scheme="fedmmd")
    assert error is not None
    assert error.remedy.startswith("give --training-option of=features, or choose --scheme fedgsp, ")
    assert refused({ONE_OUTPUT}, scheme="fedmmd", training_option={"of": "features"}) is None


def test_the_error_by_which_the_task_lacks_something_is_the_reason() -> None:
    error = refused({CLASS_COUNTS}, "node n0: NameError: name 'np' is not defined", scheme="fedgsp")
    assert error is not None
    assert error.what.endswith("and the task has none: node n0: NameError: name 'np' is not defined")
    assert error.remedy.startswith("correct this, or choose --scheme ")
