from __future__ import annotations

import pytest

from fedgsp.messages import Described, Evaluated, MemberDone, Result
from tests.support.surveyed import surveyed
from top_server.evaluation import MOST_METRICS, Evaluation, evaluate

TWO = {0: Evaluated(3, 4, 2.0, metrics={"auc": 0.9}), 5: Evaluated(1, 12, 6.0)}


def test_figures_are_over_all_samples_and_per_client() -> None:
    found = Evaluation(TWO)
    assert found.overall == {"accuracy": pytest.approx(4 / 16), "loss": pytest.approx(8 / 16)}
    assert found.per_client == {0: 3 / 4, 5: 1 / 12}
    assert found.metrics == {"auc": {0: 0.9}}


def test_the_metrics_of_most_clients_are_kept_whatever_names_some_make_up() -> None:
    answers = {client: Evaluated(1, 2, 0.5, metrics={"auc": 0.5}) for client in range(300)}
    answers[300] = Evaluated(1, 2, 0.5, metrics={f"a{number}": 1.0 for number in range(1_000)})
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
            task, done=(MemberDone(0, 0, Evaluated(3, 5, 2.0)), MemberDone(1, 1, result))
        )
        play = surveys.stage
        found = await evaluate(play.context, play.progress, play.merging, 1)
        (told,) = surveys.stage.journal.of_kind("not_evaluated")
    assert found == Evaluation({0: Evaluated(3, 5, 2.0)}, partial=True)
    assert told["reason"] == "1 of 2 clients gave no answer: another answer than was asked for"
