"""Training losses of cluster models: who can judge them."""

from __future__ import annotations

import pytest
from support.scripted import model
from support.surveyed import Surveys, surveyed

from fedgsp.messages import Evaluated, MemberDone
from top_server.group_run import GroupOutcome, GroupTask
from top_server.profiles.losses import Losses


def answering(surveys: Surveys) -> None:
    """Every client says that it judged five samples, with its id as the mean loss."""

    def judge(task: GroupTask) -> GroupOutcome:
        done = tuple(MemberDone(c, place, Evaluated(1, 5, 5.0 * c)) for place, c in enumerate(task.clients))
        return surveys.outcome(task, done=done)

    surveys.answers["evaluate-training"] = judge
    surveys.answers["initialise"] = lambda task: surveys.outcome(task, result=surveys.made(model(0.0)))


async def test_a_client_without_training_samples_judges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with surveyed(monkeypatch, 2, "clusters", {"models": "2"}) as surveys:
        answering(surveys)
        await surveys.join("n1", c7=0)
        evidence = await Losses(surveys.stage.run).gather(1)
    assert evidence.clients == (0, 1)
    assert evidence.matrices["costs"].tolist() == [[0.0, 0.0], [1.0, 1.0]]


async def test_where_no_client_has_training_samples_nobody_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    async with surveyed(monkeypatch, 0, "clusters", {"models": "2"}) as surveys:
        answering(surveys)
        await surveys.join("n1", c7=0)
        evidence = await Losses(surveys.stage.run).gather(1)
    assert evidence.clients == ()
    assert evidence.matrices["costs"].shape == (0, 2)
