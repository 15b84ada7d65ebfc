"""Training losses of cluster models: who can judge them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from fedgsp.messages import Evaluated, MemberDone
from tests.support.scripted import model
from tests.support.surveyed import Surveys, surveyed
from top_server.groups.task import GroupOutcome, GroupTask


def answering(surveys: Surveys, losses: Mapping[int, Sequence[float]]) -> None:
    """Every client says that it judged five samples, with these mean losses of model after model."""

    def judge(task: GroupTask) -> GroupOutcome:
        model = len(surveys.of("evaluate-training")) - 1
        means = {client: losses[client][model] for client in task.clients}
        done = (MemberDone(c, place, Evaluated(1, 5, 5.0 * mean)) for place, (c, mean) in enumerate(means.items()))
        return surveys.outcome(task, done=tuple(done))

    surveys.answers["evaluate-training"] = judge
    surveys.answers["initialise"] = lambda task: surveys.outcome(task, result=surveys.made(model(0.0)))


NAN, INFINITE = math.nan, math.inf


@pytest.mark.parametrize(
    ("losses", "chosen", "train_loss"),
    [
        ({0: (2.0, 1.0), 1: (3.0, 4.0)}, [1, 1], (10 * 1.0 + 11 * 3.0) / 21),
        ({0: (NAN, 1.0), 1: (3.0, NAN)}, [1, 1], (10 * 1.0 + 11 * 3.0) / 21),
        ({0: (NAN, NAN), 1: (3.0, 4.0)}, [1, 0], 3.0),
        ({0: (INFINITE, INFINITE), 1: (3.0, 4.0)}, [1, 0], 3.0),
        ({0: (NAN, INFINITE), 1: (INFINITE, NAN)}, [0, 0], None),
    ],
)
async def test_event_clusters_chosen_has_the_choices_that_the_grouping_makes(
    monkeypatch: pytest.MonkeyPatch,
    losses: Mapping[int, Sequence[float]],
    chosen: list[int],
    train_loss: float | None,
) -> None:
    """NaN, and infinite losses, are worst; who has no other is in no group, and counts in no mean."""
    async with surveyed(monkeypatch, 2, "clusters", {"models": "2"}) as surveys:
        answering(surveys, losses)
        await surveys.stage.profile("losses").gather(1)
        (told,) = surveys.stage.journal.of_kind("clusters_chosen")
    assert told["clients"] == chosen
    assert told["train_loss"] == (None if train_loss is None else pytest.approx(train_loss))
