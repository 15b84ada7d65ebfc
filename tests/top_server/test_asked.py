"""What a top server tells of a run before its first round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Reveal
from fedgsp.settings.run import RunConfig
from top_server.asked import WORK, asked
from top_server.choosing import choose
from top_server.profiles import PROFILES


def test_every_profile_says_what_work_it_asks_for() -> None:
    assert set(PROFILES.built_in) == set(WORK)


def test_of_a_profile_of_another_package_nothing_is_known() -> None:
    config = RunConfig(scheme="global")
    assert asked(config, replace(choose(config), profile="theirs")) == ((), ())


@pytest.mark.parametrize(
    ("settings", "view", "work"),
    [
        ({}, None, {"describe"}),
        ({"scheme": "fedavg"}, None, set()),
        ({"scheme": "hcct"}, "exact", {"retain"}),
        ({"scheme": "hcct", "profile_option": {"similarity": "sketch"}}, "sketch:16384", {"retain"}),
        ({"scheme": "fedcollab"}, None, {"discriminate", "retain"}),
        ({"scheme": "fesem"}, None, {"compare", "retain"}),
        ({"scheme": "ida", "aggregation_option": {"times": "intrac"}}, None, {"evaluate-training"}),
    ],
)
def test_the_first_training_and_the_other_work(settings: dict[str, Any], view: str | None, work: set[str]) -> None:
    config = RunConfig(batch_size=7, learning_rate=0.25, local_epochs=3, **settings)
    told = asked(config, choose(config))
    (training,) = told.trainings
    assert training.reveal == (Reveal(view) if view else None)
    assert training.settings is not None
    assert (training.settings.batch_size, training.settings.local_epochs) == (7, 3)
    assert training.settings.learning_rate == 0.25
    assert set(told.work) == {"evaluate", "initialise", *work}


def test_a_run_with_an_initial_model_needs_no_node_to_make_one() -> None:
    config = RunConfig(initial_model=Path("model.safetensors"))
    assert "initialise" not in asked(config, choose(config)).work


@pytest.mark.parametrize(("options", "epochs"), [({}, 60), ({"prior_epochs": "4"}, 4)])
def test_a_prior_training_is_told_too(options: dict[str, str], epochs: int) -> None:
    config = RunConfig(scheme="maxfl", rounds=20, local_epochs=3, profile_option=options)
    first, prior = asked(config, choose(config)).trainings
    assert first.settings is not None
    assert prior.settings is not None
    assert (first.settings.local_epochs, prior.settings.local_epochs, prior.aside) == (3, epochs, True)
