"""Which round is the best, and when a run has waited long enough."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.messages import HostedClient
from fedgsp.scoring import Figure, Scoring
from fedgsp.settings.run import RunConfig
from top_server.best import Best, after_row, check_validation, chosen_by_validation, is_last, told_validation
from top_server.choosing import choose

SCORES = st.lists(st.none() | st.floats(-5, 5), max_size=30)


def after(scores: list[float | None]) -> Best:
    best = Best()
    for number, score in enumerate(scores, start=1):
        best = best.after(number, score)
    return best


@given(SCORES)
def test_the_best_round_is_the_first_of_the_largest_score(scores: list[float | None]) -> None:
    best, known = after(scores), [score for score in scores if score is not None]
    assert best.score == max(known, default=None)
    assert best.round == (scores.index(best.score) + 1 if known else 0)


@given(SCORES, st.integers(1, 5))
def test_a_run_waits_for_so_many_scores_after_the_best_one(scores: list[float | None], patience: int) -> None:
    best = after(scores)
    later = [score for score in scores[best.round :] if score is not None]
    assert best.waited == len(later)
    assert best.is_final(patience) == (len(later) >= patience)
    assert not best.is_final(None)
    assert Best.from_json(json.loads(json.dumps(best.to_json()))) == best


def test_an_evaluation_without_a_score_counts_neither_way() -> None:
    assert after([0.5, None, None]) == Best(0.5, 1, 0)
    assert after([0.5, None, 0.4, None, 0.4]).waited == 2


def figures(**values: float | None) -> dict[int, Figure | None]:
    return {int(name[1:]): None if value is None else Figure(value, 1.0, 10) for name, value in values.items()}


def test_rounds_are_compared_over_the_clients_that_both_have() -> None:
    by = Scoring(score="-mae")
    best = Best().after(1, -2.0, figures(c0=1.0, c1=3.0), by)
    # Client 1, the worst, is away: over client 0 alone round 2 is worse, though its mean is smaller.
    assert best.after(2, -1.5, figures(c0=1.5), by) == Best(-2.0, 1, 1, best.figures)
    better = best.after(2, -0.5, figures(c0=0.5), by)
    assert (better.score, better.round, better.waited) == (-0.5, 2, 0)
    # A client that came later does not count against it.
    assert best.after(2, -5.0, figures(c0=0.9, c1=2.9, c2=11.0), by).round == 2
    assert best.after(2, -9.0, figures(c2=9.0), by) is best  # no client in common


def test_a_client_whose_figure_is_no_number_any_more_cannot_make_a_model_the_best() -> None:
    by = Scoring(score="-mae")
    best = Best().after(1, -2.0, figures(c0=1.0, c1=3.0), by)
    assert best.after(2, -0.1, figures(c0=0.1, c1=None), by) is best
    # A client that never had a number counts in no round.
    never = Best().after(1, -1.0, figures(c0=1.0, c1=None), by)
    assert never.after(2, -0.5, figures(c0=0.5, c1=None), by).round == 2


def test_the_same_decisions_are_made_after_a_resume() -> None:
    by = Scoring(score="-mae")
    best = Best().after(1, -2.0, figures(c0=1.0, c1=3.0), by)
    again = Best.from_json(json.loads(json.dumps(best.to_json())))
    assert again == best
    later = {"round": 2, "validation": {"scored_by": "-mae", "score": -0.5, "behind_score": {"0": [0.5, 1.0, 10]}}}
    assert after_row(again, later, 1, by) == after_row(best, later, 1, by) == best.after(2, -0.5, figures(c0=0.5), by)


def test_what_validation_can_decide_is_told_before_the_run() -> None:
    hosted = [HostedClient(0, 9, 3), HostedClient(1, 9, 3, validation_samples=4)]
    assert list(told_validation(RunConfig(), hosted)) == []
    config = RunConfig(patience=5, rounds=20, evaluate_every=5, keep_models="best")
    some, useless = told_validation(config, hosted)
    assert some == "1 of 2 clients have validation parts, with 4 samples"
    assert useless.startswith(
        "--patience 5 cannot end this run before its last round: validation data are evaluated 4"
    )


def row(number: int, score: float | None, **others: Any) -> dict[str, Any]:
    return {"round": number, "accuracy": 0.1 * number, "validation": {"accuracy": score}, **others}


def test_the_last_round_counts_only_if_it_is_evaluated_in_turn() -> None:
    assert after_row(Best(), row(3, 0.5), 3) == Best(0.5, 3)
    assert after_row(Best(0.5, 3), row(4, 0.9), 3) == Best(0.5, 3)
    assert after_row(Best(0.5, 3), {"round": 6}, 3) == Best(0.5, 3)


def test_the_score_of_the_task_decides() -> None:
    better = {"scored_by": "-mae", "score": -1.0, "accuracy": 0.0}
    assert after_row(Best(-2.0, 1), {"round": 2, "validation": better}, 1) == Best(-1.0, 2)


def test_a_run_ends_after_its_last_round_or_when_it_has_waited() -> None:
    config = RunConfig(rounds=5, patience=2)
    assert not is_last(config, Best(0.5, 3, 1), 4)
    assert is_last(config, Best(0.5, 2, 2), 4)
    assert is_last(config, Best(0.5, 5, 0), 5)


def test_the_summary_says_by_what_a_round_was_chosen_and_its_figures_on_test_data() -> None:
    rows = [row(1, 0.4), row(2, 0.6, accuracy_per_client={"0": 0.3}), row(3, 0.5)]
    assert chosen_by_validation(rows, Best(0.6, 2, 1)) == {
        "validated": {
            "chosen_by": "validation accuracy",
            "round": 2,
            "validation_score": 0.6,
            "test": {"accuracy": 0.2, "accuracy_per_client": {"0": 0.3}},
        }
    }
    assert chosen_by_validation(rows, Best()) == {}


@pytest.mark.parametrize(
    ("changes", "flag"), [({"patience": 1}, "--patience"), ({"keep_models": "best"}, "--keep-models best")]
)
def test_without_validation_data_nothing_is_decided(changes: dict[str, Any], flag: str) -> None:
    hosted = [HostedClient(0, 10, 5), HostedClient(1, 10, 5)]
    with pytest.raises(ConfigError, match=f"{flag} needs validation data"):
        check_validation(RunConfig(**changes), hosted)
    check_validation(RunConfig(**changes), [*hosted, HostedClient(2, 10, 5, validation_samples=1)])
    check_validation(RunConfig(), hosted)


@pytest.mark.parametrize("scheme", ["hcct-p", "ditto", "pfedme"])
def test_what_stays_on_nodes_is_not_kept_for_the_best_round(scheme: str) -> None:
    with pytest.raises(ConfigError, match="--keep-models best: in scheme"):
        choose(RunConfig(scheme=scheme, keep_models="best"))
    choose(RunConfig(scheme=scheme, patience=3))
