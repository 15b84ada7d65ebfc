"""What a top server tells of a run before its first round."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.settings.run import RunConfig
from top_server.asked import _WORK, asked
from top_server.choosing import choose
from top_server.profiles import PROFILES

#: Profiles that ask for no other work than trainings: what clients reveal comes with these.
ONLY_TRAIN = {"none", "updates", "prior-models"}


def test_every_profile_says_what_work_it_asks_for() -> None:
    assert set(PROFILES.built_in) == {*_WORK, *ONLY_TRAIN}


@pytest.mark.parametrize(
    ("settings", "view", "work"),
    [
        ({}, None, ("describe", "evaluate")),
        ({"scheme": "fedavg"}, None, ("evaluate",)),
        ({"scheme": "hcct"}, "exact", ("evaluate",)),
        ({"scheme": "hcct", "profile_option": {"similarity": "sketch"}}, "sketch:16384", ("evaluate",)),
        ({"scheme": "fedcollab"}, None, ("discriminate", "evaluate")),
        ({"scheme": "ida", "aggregation_option": {"times": "intrac"}}, None, ("evaluate", "evaluate-training")),
    ],
)
def test_the_first_training_and_the_other_work(settings: dict[str, Any], view: str | None, work: tuple[str]) -> None:
    config = RunConfig(batch_size=7, learning_rate=0.25, local_epochs=3, **settings)
    told = asked(config, choose(config))
    assert (told.training.reveal.view if told.training.reveal else None, told.work) == (view, work)
    assert told.training.settings is not None
    assert (told.training.settings.batch_size, told.training.settings.local_epochs) == (7, 3)
    assert told.training.settings.learning_rate == 0.25
