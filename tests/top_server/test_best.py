"""Which round is the best, and when a run has waited long enough."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.messages import HostedClient
from fedgsp.settings.run import RunConfig
from top_server.best import Best, after_row, check_validation, chosen_by_validation, is_last
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
