"""The global model beside the clients' own: whose answers count."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.surveyed import Surveys, surveyed

from fedgsp.messages import Evaluated, MemberDone, ModelRef, Trained
from top_server.group_task import GroupOutcome, GroupTask
from top_server.profiles.priors import PriorDistances, PriorLosses, Priors


def answering(surveys: Surveys, judged: dict[int, int]) -> None:
    """Every client trains; it judges five samples, or as many as are named here, with its id as the mean loss."""

    def alone(task: GroupTask) -> GroupOutcome:
        done = tuple(MemberDone(c, 0, Trained(ModelRef(f"prior of {c}"))) for c in task.clients)
        return surveys.outcome(task, done=done)

    def judge(task: GroupTask) -> GroupOutcome:
        counts = {client: judged.get(client, 5) for client in task.clients}
        done = (MemberDone(c, 0, Evaluated(0, n, float(n * c), squared_distance=0.5)) for c, n in counts.items())
        return surveys.outcome(task, done=tuple(done))

    surveys.answers.update({"alone": alone, "evaluate-training": judge, "compare": judge})


@pytest.mark.parametrize("profile", [PriorLosses, PriorDistances])
async def test_a_client_that_judged_no_samples_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: type[Priors]
) -> None:
    async with surveyed(monkeypatch, 3, "weighted-mean", run_dir=tmp_path) as surveys:
        answering(surveys, {1: 0})
        learned = profile(surveys.stage.run)
        evidence = await learned.gather(2)
    assert evidence.clients == (0, 2)
    assert evidence.matrices["train_loss"].tolist() == [[0.0], [2.0]]
