"""What cannot be extended is refused before a node is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.resume import extend


def refused(done: int, rounds: int, **settings: Any) -> ConfigError:
    config = RunConfig(**{"rounds": done, **settings})
    with pytest.raises(ConfigError) as caught:
        extend.check(config, choose(config), done, rounds)
    return caught.value


@pytest.mark.parametrize("rounds", [3, 10])
def test_the_number_of_rounds_must_grow(rounds: int) -> None:
    assert refused(10, rounds).what == f"--extend: --rounds is {rounds}, and the run has 10 rounds"


def test_a_schedule_is_followed_up_to_its_horizon() -> None:
    given: dict[str, Any] = {"schedule": "cosine", "schedule_option": {"horizon": "20"}}
    config = RunConfig(rounds=10, **given)
    extend.check(config, choose(config), 10, 20)
    error = refused(10, 21, **given)
    assert "--schedule cosine of the run ends at its horizon, round 20" in error.what
    assert error.remedy == "give --rounds 20, or start a run with --schedule-option horizon=21"
    assert refused(20, 21, **given).remedy == "start a run with --schedule-option horizon=21"


@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_a_schedule_that_has_no_end_goes_on(schedule: str) -> None:
    config = RunConfig(rounds=10, schedule=schedule)
    extend.check(config, choose(config), 10, 1000)


def test_a_learning_rate_that_falls_to_nothing_ends_it() -> None:
    assert "the learning rate is 0 before round 99999" in refused(10, 99999, learning_rate_decay=0.5).what


@pytest.mark.parametrize("scheme", ["maxfl", "maxfl-hcct", "kmeans"])
def test_prior_models_must_not_depend_on_the_number_of_rounds(scheme: str) -> None:
    error = refused(10, 20, scheme=scheme)
    assert "as many epochs as the run had in all" in error.what
    assert error.remedy == "start a run with --profile-option prior_epochs=..."
    config = RunConfig(rounds=10, scheme=scheme, profile_option={"prior_epochs": "4"})
    extend.check(config, choose(config), 10, 20)


def test_training_alone_was_as_long_as_the_run(tmp_path: Any) -> None:
    assert "10 rounds of training alone" in refused(10, 20, scheme="hcct", local_run=tmp_path / "alone").what
