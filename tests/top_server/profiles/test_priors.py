"""The global model beside the clients' own: whose answers count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import pytest

from fedgsp.messages import Evaluated, Failure, FailureCode, MemberDone, MemberSkipped, ModelRef, Trained
from tests.support.surveyed import Answer, Surveys, surveyed
from top_server.evidence import Evidence
from top_server.groups.task import GroupOutcome, GroupTask

Gather = Callable[..., Awaitable[Evidence]]


def answering(surveys: Surveys, judged: Mapping[int, int], failing: Collection[int] = ()) -> None:
    """Every other client trains; it judges five samples, or as many as are named, with its id as the mean loss."""

    def alone(task: GroupTask) -> GroupOutcome:
        done = tuple(MemberDone(c, 0, Trained(ModelRef(f"prior of {c}"))) for c in task.clients if c not in failing)
        return surveys.outcome(task, done=done)

    def judge(task: GroupTask) -> GroupOutcome:
        counts = {client: judged.get(client, 5) for client in task.clients}
        done = (MemberDone(c, 0, Evaluated(0, n, float(n * c), squared_distance=0.5)) for c, n in counts.items())
        return surveys.outcome(task, done=tuple(done))

    surveys.answers.update({"alone": alone, "evaluate-training": judge, "compare": judge})


def losing(surveys: Surveys, client: int, code: FailureCode) -> None:
    """From now on a client tells nothing of its prior model."""
    skipped = (MemberSkipped(client, Failure(code, "a reason")),)

    def without(answer: Answer, task: GroupTask) -> GroupOutcome:
        outcome = answer(task)
        if client not in task.own_starts:
            return outcome
        done = tuple(one for one in outcome.done if one.client != client)
        return dataclasses.replace(outcome, done=done, skipped=skipped)

    for program in ("evaluate-training", "compare"):
        surveys.answers[program] = functools.partial(without, surveys.answers[program])


@pytest.fixture(params=["prior-losses", "prior-distances"])
async def gather(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gather]:
    """What a profile learns of three clients before a round."""
    async with surveyed(monkeypatch, 3, "weighted-mean", run_dir=tmp_path) as surveys:

        async def learn(
            round_number: int, judged: Mapping[int, int] | None = None, failing: Collection[int] = ()
        ) -> Evidence:
            answering(surveys, judged or {}, failing)
            found: Evidence = await surveys.stage.profile(request.param).gather(round_number)
            return found

        yield learn


async def test_of_a_client_that_judged_no_samples_nothing_is_known(gather: Gather) -> None:
    evidence = await gather(2, judged={1: 0})
    assert evidence.clients == (0, 1, 2)
    for column in evidence.matrices.values():
        assert np.isnan(column).tolist() == [[False], [True], [False]]
    assert evidence.matrices["train_loss"][[0, 2]].tolist() == [[0.0], [2.0]]


@pytest.mark.parametrize("round_number", [1, 2])
async def test_a_client_whose_training_beforehand_fails_is_there_all_the_same(
    gather: Gather, round_number: int
) -> None:
    evidence = await gather(round_number, failing=(1,))
    assert evidence.clients == (0, 1, 2)
    for column in evidence.matrices.values():
        assert np.isnan(column).tolist() == [[False], [True], [False]]


@pytest.mark.parametrize("round_number", [1, 2])
async def test_if_nobody_can_tell_nobody_is_there(gather: Gather, round_number: int) -> None:
    assert (await gather(round_number, failing=(0, 1, 2))).clients == ()


@pytest.mark.parametrize("kind", ["prior-losses", "prior-distances"])
async def test_a_client_that_comes_back_with_other_data_trains_its_prior_model_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, 2, "weighted-mean", run_dir=tmp_path) as surveys:
        answering(surveys, {})
        profile, members = surveys.stage.profile(kind), surveys.stage.context.membership
        node = await surveys.join("n7", c7=30)
        for number, samples in ((1, 30), (2, 30), (3, 24)):
            await members.leave(node, "its stream was lost")
            node = await surveys.join("n7", c7=samples)
            saved, profile = profile.save(), surveys.stage.profile(kind)
            profile.restore(saved)  # as a resumed run does
            await profile.gather(number)
        assert [task.clients for task in surveys.of("alone")] == [(0, 1, 7), (7,)]
        # Losses of prior models are asked for once for each of these models.
        judged = [task.clients for task in surveys.of("evaluate-training") if task.own_starts]
        assert judged == ([(0, 1, 7), (7,)] if kind == "prior-losses" else [])


@pytest.mark.parametrize("kind", ["prior-losses", "prior-distances"])
async def test_a_state_without_numbers_of_samples_keeps_its_prior_models(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, 2, "weighted-mean", run_dir=tmp_path) as surveys:
        answering(surveys, {})
        first, again = surveys.stage.profile(kind), surveys.stage.profile(kind)
        await first.gather(1)
        again.restore({name: value for name, value in first.save().items() if name != "samples"})
        await again.gather(2)
        assert [task.clients for task in surveys.of("alone")] == [(0, 1)]


@pytest.mark.parametrize(
    ("code", "again"),
    [(FailureCode.NODE_LOST, False), (FailureCode.UNKNOWN_CLIENT, False), (FailureCode.NO_SUCH_MODEL, True)],
)
@pytest.mark.parametrize("kind", ["prior-losses", "prior-distances"])
async def test_a_prior_model_is_trained_again_if_its_node_has_lost_it_and_not_if_the_node_was_away(
    kind: str, code: FailureCode, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, 3, "weighted-mean", run_dir=tmp_path) as surveys:
        profile = surveys.stage.profile(kind)
        answering(surveys, {})
        losing(surveys, 1, code)
        await profile.gather(1)
        evidence = await profile.gather(2)
        assert [np.isnan(column[:, 0]).tolist() for column in evidence.matrices.values()] == [[False, True, False]] * 2
        answering(surveys, {})
        evidence = await profile.gather(3)
        assert not any(np.isnan(column).any() for column in evidence.matrices.values())
        assert (len(surveys.of("alone")) > 1) is again


@pytest.mark.parametrize("kind", ["prior-losses", "prior-distances"])
async def test_a_prior_model_is_not_trained_again_because_the_manager_was_full(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Failure(FailureCode.UNSPECIFIED, "the group manager is full")
    async with surveyed(monkeypatch, 3, "weighted-mean", run_dir=tmp_path) as surveys:
        profile = surveys.stage.profile(kind)
        answering(surveys, {})

        def ends_early(answer: Answer, task: GroupTask) -> GroupOutcome:
            return dataclasses.replace(answer(task), result=full, done=answer(task).done[:1])

        for program in ("evaluate-training", "compare"):
            surveys.answers[program] = functools.partial(ends_early, surveys.answers[program])
        for number in (1, 2):
            await profile.gather(number)
        assert surveys.stage.journal.of_kind("question_failed")
        answering(surveys, {})
        evidence = await profile.gather(3)
        assert not any(np.isnan(column).any() for column in evidence.matrices.values())
        assert [task.clients for task in surveys.of("alone")] == [(0, 1, 2)]
