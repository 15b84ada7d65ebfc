from __future__ import annotations

import dataclasses
import functools
import math

import pytest

from fedgsp.messages import Described, Evaluated, Failure, FailureCode, MemberDone, Result
from fedgsp.scoring import MOST_METRICS, Scoring
from tests.support.surveyed import surveyed
from top_server.evaluation import METRICS, NOT_FINITE, NOT_REPORTED, TEST, VALIDATION, Evaluation, evaluate
from top_server.groups.task import GroupOutcome, GroupTask

TWO = {0: Evaluated(3, 4, 2.0, judged=4, metrics={"auc": 0.9}), 5: Evaluated(1, 12, 6.0, judged=12)}


def test_figures_are_over_all_samples_and_per_client() -> None:
    found = Evaluation(TWO)
    assert found.overall == {"accuracy": pytest.approx(4 / 16), "loss": pytest.approx(8 / 16)}
    assert found.per_client == {0: 3 / 4, 5: 1 / 12}
    assert found.metrics == {"auc": {0: 0.9}}


def test_the_metrics_of_most_clients_are_kept_whatever_names_some_make_up() -> None:
    answers = {client: Evaluated(1, 2, 0.5, judged=2, metrics={"auc": 0.5}) for client in range(300)}
    answers[300] = Evaluated(1, 2, 0.5, judged=2, metrics={f"a{number}": 1.0 for number in range(1_000)})
    found = Evaluation(answers).metrics
    assert len(found) == MOST_METRICS
    assert found["auc"] == dict.fromkeys(range(300), 0.5)


def test_a_partial_evaluation_tells_clients_apart_but_nothing_over_all() -> None:
    found = Evaluation(TWO, partial=True)
    assert found.overall == {"accuracy": None, "loss": None}
    assert found.per_client == {0: 3 / 4, 5: 1 / 12}


@pytest.mark.parametrize("result", [Described((1, 2)), None])
async def test_a_client_with_another_answer_than_was_asked_for_gave_none(
    monkeypatch: pytest.MonkeyPatch, result: Result | None
) -> None:
    """A manager of another version may let it through."""
    async with surveyed(monkeypatch, 2, "weighted-mean") as surveys:
        surveys.answers["evaluate"] = lambda task: surveys.outcome(
            task, done=(MemberDone(0, 0, Evaluated(3, 5, 2.0, judged=5)), MemberDone(1, 1, result))
        )
        play = surveys.stage
        found = await evaluate(play.context, play.progress, play.merging, 1)
        (told,) = surveys.stage.journal.of_kind("not_evaluated")
    assert found == Evaluation({0: Evaluated(3, 5, 2.0, judged=5)}, partial=True)
    assert told["reason"] == "1 of 2 clients gave no answer: another answer than was asked for"


def regression(client: int, mae: float, loss: float = 6.0, **more: float) -> Evaluated:
    return Evaluated(0, 2 * client, loss, metrics={"mae": mae, **more})


def test_a_task_without_accuracy_has_a_score_instead() -> None:
    found = Evaluation({1: regression(1, 1.0), 3: regression(3, 2.0)}, scoring=Scoring("-mae"))
    assert found.overall == {"accuracy": None, "loss": pytest.approx(12 / 8)}
    assert found.per_client == {}
    assert (found.combined, found.score) == ({"mae": 1.75}, -1.75)
    assert found.score_per_client == {1: -1.0, 3: -2.0}
    by_loss = dataclasses.replace(found, scoring=Scoring("-loss"))
    assert (by_loss.score, by_loss.score_per_client) == (-12 / 8, {1: -3.0, 3: -1.0})


def test_pixels_give_an_accuracy_weighted_by_samples() -> None:
    ignored = Evaluated(0, 5, 1.0)
    found = Evaluation({0: Evaluated(30, 2, 1.0, judged=60), 1: Evaluated(4, 6, 1.0, judged=4), 2: ignored})
    assert found.per_client == {0: 0.5, 1: 1.0}
    assert found.overall["accuracy"] == (2 * 0.5 + 6 * 1.0) / 8


def test_what_is_no_number_is_named_and_left_out() -> None:
    nan, inf = float("nan"), float("inf")
    answers = {1: regression(1, nan), 2: regression(2, 4.0), 3: regression(3, 2.0, inf), 4: Evaluated(0, 8, 6.0)}
    found = Evaluation(answers, scoring=Scoring("-mae"))
    assert found.score == -(4 * 4.0 + 6 * 2.0) / 10
    assert found.left_out == {"mae": {1: NOT_FINITE, 4: NOT_REPORTED}, "loss": {3: NOT_FINITE}}
    assert found.score_per_client == {2: -4.0, 3: -2.0}
    by_loss = dataclasses.replace(found, scoring=Scoring("-loss"))
    assert by_loss.score == -(6.0 + 6.0 + 6.0) / (2 + 4 + 8)
    nobody = Evaluation({3: regression(3, 2.0, inf)}, scoring=Scoring("-loss"))
    assert (nobody.overall["loss"], nobody.score) == (None, None)


@pytest.mark.parametrize(("score", "named"), [("-mae", "mae"), ("accuracy", METRICS)])
def test_the_error_of_metrics_is_why_they_are_left_out(score: str, named: str) -> None:
    failed = Failure(FailureCode.TASK_RAISED, "ValueError: only one class present")
    answers = {1: regression(1, 1.0), 2: Evaluated(0, 4, 6.0, metrics_failed=failed)}
    left_out = Evaluation(answers, scoring=Scoring(score)).left_out
    assert left_out == {named: {2: "metrics() failed: ValueError: only one class present"}}


def test_a_partial_evaluation_has_no_score() -> None:
    found = Evaluation({1: regression(1, 1.0)}, partial=True, scoring=Scoring("-mae"))
    assert (found.combined, found.score, found.score_per_client) == ({"mae": None}, None, {1: -1.0})


async def test_one_evaluation_records_few_bytes_of_what_does_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("top_server.evaluation.MOST_LEFT_OUT", 300)
    broken = {f"m{number:03}": float("nan") for number in range(100)}
    async with surveyed(monkeypatch, 2, "weighted-mean") as surveys:
        play = surveys.stage
        done = tuple(MemberDone(one, one, Evaluated(1, 5, 1.0, judged=5, metrics=broken)) for one in (0, 1))
        surveys.answers["evaluate"] = functools.partial(surveys.outcome, done=done)
        await evaluate(play.context, play.progress, play.merging, 1)
        events = play.journal.of_kind("metric_left_out")
    assert [one["metric"] for one in events] == [f"m{number:03}" for number in range(len(events))]
    assert 0 < len(events) < 5
    assert f"figures do not count for {100 - len(events)} more reasons, not recorded" in caplog.text


async def test_clients_that_are_left_out_are_named_until_they_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    nan = float("nan")
    values = [{0: nan, 1: 1.0}, {0: nan, 1: 1.0}, {0: nan, 1: nan}, {0: 2.0, 1: 1.0}, {0: nan, 1: 1.0}]
    async with surveyed(monkeypatch, 2, "weighted-mean") as surveys:
        play = surveys.stage
        for number, told in enumerate(values, start=1):
            done = tuple(
                MemberDone(client, client, Evaluated(1, 5, 1.0, judged=5, metrics={"auc": value}))
                for client, value in told.items()
            )
            surveys.answers["evaluate"] = functools.partial(surveys.outcome, done=done)
            await evaluate(play.context, play.progress, play.merging, number)
        events = play.journal.of_kind("metric_left_out")
    assert [(one["round"], one["metric"], list(one["clients"])) for one in events] == [
        (1, "auc", [0]),
        (3, "auc", [0, 1]),
        (5, "auc", [0]),
    ]


async def test_only_clients_with_a_validation_part_are_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with surveyed(monkeypatch, 2, "weighted-mean") as surveys:
        play = surveys.stage
        assert await evaluate(play.context, play.progress, play.merging, 1, VALIDATION) is None
        assert not play.journal.of_kind("not_evaluated")
        clients = play.context.membership._clients
        hosted, node = clients[1]
        clients[1] = dataclasses.replace(hosted, validation_samples=3), node
        asked: list[tuple[int, ...]] = []

        def answer(task: GroupTask) -> GroupOutcome:
            asked.append(task.clients)
            return surveys.outcome(task, done=(MemberDone(1, 0, Evaluated(2, 3, 1.5, judged=3)),))

        surveys.answers["evaluate-validation"] = answer
        found = await evaluate(play.context, play.progress, play.merging, 1, VALIDATION)
        assert found is not None
        assert (asked, found.score, found.partial) == ([(1,)], 2 / 3, False)
        # with other samples than it joined with, it gave no answer
        surveys.answers["evaluate-validation"] = lambda task: surveys.outcome(
            task, done=(MemberDone(1, 0, Evaluated(5, 5, 1.5, judged=5)),)
        )
        assert await evaluate(play.context, play.progress, play.merging, 2, VALIDATION) is None
        (told,) = play.journal.of_kind("not_validated")
        assert told["reason"].startswith("1 of 1 clients gave no answer on validation data")
        assert not play.journal.of_kind("not_evaluated")


async def test_figures_of_validation_data_that_do_not_count_are_named_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with surveyed(monkeypatch, 1, "weighted-mean") as surveys:
        play = surveys.stage
        clients = play.context.membership._clients
        clients[0] = dataclasses.replace(clients[0][0], validation_samples=3), clients[0][1]
        nan = {"mae": float("nan")}
        for program, samples in (("evaluate", 5), ("evaluate-validation", 3)):
            one = Evaluated(1, samples, 1.0, judged=samples, metrics=nan)
            surveys.answers[program] = functools.partial(surveys.outcome, done=(MemberDone(0, 0, one),))
        for number in (1, 2):  # each is named once
            for part in (TEST, VALIDATION):
                await evaluate(play.context, play.progress, play.merging, number, part)
        assert [event["metric"] for event in play.journal.of_kind("metric_left_out")] == ["mae", "validation mae"]


@pytest.mark.parametrize("large", [1.7e308, -1.7e308, math.inf])
def test_one_client_cannot_make_the_loss_of_all_too_large_to_be_drawn(large: float) -> None:
    found = Evaluation({**TWO, 7: Evaluated(1, 2, large, judged=2, metrics={"auc": large})})
    assert found.overall["loss"] == pytest.approx(8 / 16)
    assert found.combined["auc"] == pytest.approx(0.9)
    assert found.left_out == {"auc": {7: NOT_FINITE}, "loss": {7: NOT_FINITE}}
