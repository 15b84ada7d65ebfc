"""What the history says of a round."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgsp.messages import Evaluated, Failure, FailureCode, GroupResult, ModelRef
from fedgsp.scoring import MOST_FIGURE, Scoring, is_figure
from tests.support.staged import stage
from top_server.evaluation import Evaluation
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.groups.moved import Moved
from top_server.groups.planning import round_tasks
from top_server.groups.task import GroupOutcome, Trace
from top_server.merging import MERGES
from top_server.record.columns import HISTORY, wrong_in
from top_server.record.figures import row_of, summarise
from top_server.record.history import plain
from top_server.record.scores import score_of, scored_by, scores_of
from top_server.schemes import SCHEMES
from top_server.teams import Teams

PLAN = Plan(((0, 1), (2, 3)), ())
SERVED = Evaluation({0: Evaluated(10, 20, 1.0, judged=20), 1: Evaluated(10, 10, 3.0, judged=10)})


@pytest.mark.parametrize("merge", ["mean", "none"])
@pytest.mark.parametrize("sampling", ["groups", "none"])
async def test_a_row_has_figures_by_client_if_all_clients_train_or_models_differ(merge: str, sampling: str) -> None:
    async with stage(merge, run_dir=None) as s:
        s.context = dataclasses.replace(s.context, scheme=dataclasses.replace(SCHEMES["fedgsp"], sampling=sampling))
        trained = [await s.trained([0, 1], 5.0, skipped={1: "gone"})]
        teams = Teams(PLAN, PLAN.groups[:1])
        row = row_of(s.context, 3, teams, trained, SERVED, 1.23456, s.merging.shared, {}).fields
    told = ("round", "groups", "sampled_groups", "clients_trained", "clients_skipped", "clients_evaluated", "seconds")
    assert [row[name] for name in told] == [3, 2, 1, 1, 1, 2, 1.235]
    assert {name: row[name] for name in ("accuracy", "loss")} == SERVED.overall
    each = merge == "none" or sampling == "none"
    assert ("partition" in row, "accuracy_per_client" in row) == (each, each)


async def test_what_was_moved_in_tries_before_the_last_one_counts() -> None:
    async with stage("mean", run_dir=None) as s:
        trained = await s.trained([0, 1], 5.0)
        moved = dataclasses.replace(trained, trace=Trace(moved=Moved(100, 20, 3)))
        teams = Teams(PLAN, PLAN.groups[:1])
        row = row_of(s.context, 3, teams, [moved], None, 1.0, True, {}, moved_before=Moved(1000, 200, 30)).fields
    assert [row[f"bytes_{how}"] for how in ("direct", "relayed", "travelled")] == [1100, 220, 33]


async def test_of_a_group_without_a_result_nobody_has_trained() -> None:
    async with stage("mean", run_dir=None) as s:
        whole, failed = await s.trained([0, 1], 5.0, skipped={1: "gone"}), await s.trained([2, 3], 7.0, 1)
        failed = dataclasses.replace(failed, result=Failure(FailureCode.NOT_FINITE, "the model is not finite"))
        row = row_of(s.context, 3, Teams(PLAN, PLAN.groups), [whole, failed], None, 1.0, True, {}).fields
    assert (row["clients_trained"], row["clients_skipped"]) == (1, 3)


@pytest.mark.parametrize(
    ("histograms", "expected"),
    [
        ({}, None),
        ({0: (5, 0), 1: (0, 5)}, None),  # nothing is known of the second group
        ({0: (5, 0), 3: (5, 0)}, 0.0),
    ],
)
async def test_the_distance_of_class_distributions_is_null_unless_two_groups_have_one(
    histograms: dict[int, tuple[int, ...]], expected: float | None
) -> None:
    async with stage("none") as s:
        row = row_of(s.context, 1, Teams(PLAN, PLAN.groups), [], None, 1.0, False, histograms).fields
        assert row["cpd_median"] == expected


async def test_drawn_clients_that_train_in_turn_cost_the_time_of_these_alone() -> None:
    plan = Plan(((0, 1),), ())
    async with stage("mean", sampling_rate=0.5) as s:
        one_each = dataclasses.replace(s.context, scheme=SCHEMES["fedavg"])
        in_turn = dataclasses.replace(s.context, scheme=dataclasses.replace(SCHEMES["fedavg"], program="relay"))
        at_once, chain = (
            row_of(context, 1, Teams(plan, plan.groups), [], None, 1.0, True, {}).fields["t_comp_s"]
            for context in (one_each, in_turn)
        )
        assert chain == pytest.approx(2 * at_once, rel=1e-3)  # two of the four clients are drawn


@pytest.mark.parametrize(
    ("merge", "groups", "travel"),
    [
        ("none", ((0,), (1,), (2,), (3,)), 0),
        ("none", ((0,), (1, 2), (3,)), 2),
        ("none", ((0, 1, 2, 3),), 4),
        ("mean", ((0,), (1, 2), (3,)), 4),  # their results go to the top server
        ("soft-clusters", ((0,), (1,), (2,), (3,)), 4),
    ],
)
async def test_models_of_clients_that_train_alone_and_keep_them_cause_no_traffic(
    merge: str, groups: tuple[tuple[int, ...], ...], travel: int
) -> None:
    async with stage(merge) as s:
        teams = Teams(Plan(groups, ()), groups)
        tasks = round_tasks(s.context.scheme, s.merging, s.context.holdings({}), teams, Evidence((0, 1, 2, 3)))
        outcomes = [GroupOutcome(task, s.manager, GroupResult(ModelRef(""), 0, 0, 0), (), ()) for task in tasks]
        row = row_of(s.context, 1, teams, outcomes, None, 1.0, s.merging.shared, {}).fields
    both_ways = 2 * 8  # bytes: a model is one float64
    assert row["d_comm_bytes"] == travel * both_ways
    assert row["t_comm_s"] == pytest.approx(8 * travel * both_ways / 567e6)
    assert row["t_comp_s"] > 0


async def test_a_round_without_an_evaluation_has_no_figures_of_one() -> None:
    async with stage("none") as s:
        context = dataclasses.replace(s.context, alone={0: 0.5})
        row = row_of(context, 1, Teams(PLAN, PLAN.groups), [], None, 1.0, False, {}).fields
        assert (row["accuracy"], row["loss"], row["clients_evaluated"]) == (None, None, None)
        assert [name for name in ("accuracy_per_client", "ipr", "rsd") if name in row] == []
        row = row_of(context, 1, Teams(PLAN, PLAN.groups), [], SERVED, 1.0, False, {}).fields
        assert "ipr" in row


@pytest.mark.parametrize("merge", MERGES)
async def test_merges_say_whether_all_clients_have_the_same_model(merge: str) -> None:
    async with stage(merge, options={"trim": "0.1"} if merge == "trimmed-mean" else None) as s:
        each = ("none", "clusters", "centres", "soft-clusters")
        assert s.merging.shared is (merge not in each)


async def test_a_row_has_the_score_that_the_task_names_and_gains_by_it() -> None:
    answers = {client: Evaluated(0, 10, 1.0, metrics={"mae": float(client)}) for client in (1, 3)}
    async with stage("none") as s:
        context = dataclasses.replace(s.context, alone={1: -2.0, 3: -2.0})
        rated = Evaluation(answers, scoring=Scoring("-mae"))
        row = row_of(context, 1, Teams(PLAN, PLAN.groups), [], rated, 1.0, False, {}).fields
    assert (row["accuracy"], row["scored_by"], row["score"]) == (None, "-mae", -2.0)
    assert "accuracy_per_client" not in row
    assert row["metrics"] == {"mae": 2.0}
    assert (row["score_per_client"], row["ipr"]) == ({1: -1.0, 3: -3.0}, 0.5)
    assert (scored_by(row), score_of(row), scores_of(row)) == ("-mae", -2.0, {1: -1.0, 3: -3.0})


async def test_a_task_rated_by_accuracy_has_the_columns_that_it_always_had() -> None:
    async with stage("none") as s:
        row = row_of(s.context, 1, Teams(PLAN, PLAN.groups), [], SERVED, 1.0, False, {}).fields
    assert not row.keys() & {"scored_by", "score", "score_per_client", "metrics", "metrics_per_client"}
    assert (scored_by(row), score_of(row), scores_of(row)) == ("accuracy", 20 / 30, {0: 0.5, 1: 1.0})
    assert score_of({"accuracy": None}) is None


#: The largest figures that count, figures that do not, and those that come near them by computing.
EXTREME = st.sampled_from((MOST_FIGURE, -MOST_FIGURE, MOST_FIGURE / 3, 1e-300, 0.0, 1e200, math.inf, math.nan, 0.5))
ANSWERS = st.builds(
    lambda loss, metrics, denominators: Evaluated(
        0, 1, loss, judged=0, metrics=dict(zip("abc", metrics, strict=True)), denominators={"b": denominators}
    ),
    EXTREME,
    st.lists(EXTREME, min_size=3, max_size=3),
    EXTREME,
)


@given(
    st.lists(ANSWERS, min_size=1, max_size=9).map(lambda answers: dict(enumerate(answers))),
    st.sampled_from(("-loss", "a", "-b", "-c")),
    st.dictionaries(st.integers(0, 8), EXTREME.filter(is_figure)),
)
@example({client: Evaluated(0, 1, MOST_FIGURE, judged=0) for client in range(10)}, "-loss", {})
@example(
    {c: Evaluated(0, 1, 1.0, judged=0, metrics={"a": (-1) ** c * MOST_FIGURE}) for c in (1, 2)},
    "a",
    {1: 1e100, 2: -1e100},
)
@example({0: Evaluated(0, 1, 1.0, judged=0, metrics={"b": 1.0}, denominators={"b": 1e-300})}, "a", {})
async def test_whatever_clients_tell_the_row_and_the_summary_can_be_read(
    answers: dict[int, Evaluated], score: str, alone: dict[int, float]
) -> None:
    evaluated = Evaluation(answers, scoring=Scoring(score, {"b": "ratio", "c": "sum"}))
    async with stage("none", run_dir=None) as s:
        s.context = dataclasses.replace(s.context, alone=alone)
        teams = Teams(PLAN, PLAN.groups)
        row = row_of(s.context, 1, teams, [], evaluated, 1.0, False, {}, evaluated).fields
    line = plain(row)
    assert wrong_in(line, HISTORY) == ""
    found = [
        value
        for part in (line, line["validation"])
        for by in part.get("metrics_per_client", {}).values()
        for value in by.values()
    ]
    assert all(value is None or is_figure(value) for value in found)
    json.dumps(summarise([line]), allow_nan=False)
