"""Who trains with whom: hand-made cases, each with the reason that is recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.seeds import stream
from fedgsp.settings.run import RunConfig
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.grouping.round_size import sample
from top_server.schemes import SCHEMES, Scheme
from top_server.teams import Before, Question, Teams, ask, form

CONFIG = RunConfig(seed=7, sampling_rate=0.5, learning_rate=0.1, learning_rate_decay=0.5)
SIZES = {client: 10 + client for client in (*range(6), 9)}
PAIRS = Plan(((0, 1), (2, 3)), ())


def scheme(regroup: str, **changes: Any) -> Scheme:
    return dataclasses.replace(SCHEMES["fedcollab"], regroup=regroup, **changes)


def rng(number: int = 2) -> np.random.Generator:
    return stream(CONFIG.seed, "sampling", number)


def asked(row: Scheme, plan: Plan | None, evidence: Evidence, number: int = 2) -> Question:
    return ask(CONFIG, row, {"alpha": "1"}, number, Before(plan), evidence, SIZES, rng())


def formed(row: Scheme, before: Before, question: Question, answer: Plan | None) -> Teams:
    return form(CONFIG, row, before, question, answer, range(6), rng())


@pytest.mark.parametrize(
    ("regroup", "plan", "evidence", "reason"),
    [
        ("never", None, Evidence((0, 1)), "clients are grouped for the first time"),
        ("always", PAIRS, Evidence((0, 1)), "clients are grouped anew in every round"),
        ("arrivals", PAIRS, Evidence((0, 1), newcomers=(1,)), "these clients are newcomers: 1"),
        ("arrivals", PAIRS, Evidence((0, 1, 4)), "clients are present that have no group"),
    ],
)
def test_clients_are_grouped_anew_for_a_reason(
    regroup: str, plan: Plan | None, evidence: Evidence, reason: str
) -> None:
    question = asked(scheme(regroup), plan, evidence)
    assert question.request is not None
    assert question.reason == reason


@pytest.mark.parametrize(
    ("regroup", "evidence"),
    [("arrivals", Evidence((0, 1))), ("never", Evidence((0, 4))), ("never", Evidence((0, 1), newcomers=(1,)))],
)
def test_else_the_groups_of_the_last_round_stay(regroup: str, evidence: Evidence) -> None:
    assert asked(scheme(regroup), PAIRS, evidence).request is None


def test_a_request_has_the_evidence_and_the_settled_groups_of_the_clients_that_are_present() -> None:
    matrix = np.eye(4)
    evidence = Evidence((0, 2, 3, 9), pairwise={"distances": matrix}, newcomers=(2,))
    request = asked(scheme("always"), PAIRS, evidence, number=3).request
    assert request is not None
    assert (request.round, request.seed, request.clients, request.newcomers) == (3, 7, (0, 2, 3, 9), (2,))
    assert request.sizes.tolist() == [10, 12, 13, 19]  # also if client 9 has left since it gave evidence
    assert request.settled == ((0,), (3,))
    assert request.matrices["distances"] is matrix
    assert request.learning_rate == 0.05  # of the round before
    assert request.options == {"alpha": "1"}


def test_clients_that_are_away_are_asked_about_where_their_groups_go_on() -> None:
    evidence = Evidence((0, 1, 4, 5), pairwise={"distances": np.eye(4)}, newcomers=(4,), away={1: 40, 5: 50})
    request = asked(scheme("arrivals"), PAIRS, evidence).request
    assert request is not None
    assert (request.clients, request.settled) == ((0, 1, 4), ((0, 1),))  # nobody has placed client 5
    assert request.sizes.tolist() == [10, 11, 14]  # as they told last; see SIZES
    sizes = {client: samples for client, samples in SIZES.items() if client != 1}
    absent = ask(CONFIG, scheme("arrivals"), {}, 2, Before(PAIRS), evidence, sizes, rng()).request
    assert absent is not None
    assert (absent.sizes.tolist(), absent.away) == ([10, 40, 14], (1,))
    for row, plan in ((scheme("arrivals"), None), (SCHEMES["hcct"], PAIRS)):
        present = asked(row, plan, evidence).request
        assert present is not None
        assert present.clients == (0, 4)


def test_a_request_has_the_expected_times_of_its_clients_if_there_are_any() -> None:
    evidence = Evidence((0, 2, 9))
    seconds = {0: 1.5, 1: 7.0, 2: 30.0, 9: 4.0}
    question = ask(CONFIG, SCHEMES["fedgsp"], {}, 3, Before(), evidence, SIZES, rng(), seconds)
    assert question.request is not None
    assert question.request.seconds is not None
    assert question.request.seconds.tolist() == [1.5, 30.0, 4.0]
    without = ask(CONFIG, SCHEMES["fedgsp"], {}, 3, Before(), evidence, SIZES, rng())
    assert without.request is not None
    assert without.request.seconds is None


def test_where_clients_are_sampled_a_request_is_about_these_alone() -> None:
    question = asked(SCHEMES["fedavg"], None, Evidence(tuple(range(6))))
    assert question.request is not None
    assert question.clients == question.request.clients == sample(range(6), 0.5, rng())


def test_without_evidence_about_any_client_there_are_no_teams() -> None:
    with pytest.raises(RunError, match=r"no client reported its profile \(distances\)"):
        asked(scheme("always"), PAIRS, Evidence(()))


def test_latecomers_join_the_smallest_groups_where_groups_are_fixed() -> None:
    row, plan = scheme("never"), Plan(((0, 1), (2,)), ())
    question = asked(row, plan, Evidence((0, 1, 2, 4, 5)))
    teams = formed(row, Before(plan), question, None)
    assert teams.plan == Plan(((0, 1, 5), (2, 4)), ())
    assert teams.placed == {4: 1, 5: 0}
    assert teams.reason == "the groups of the last round stay; latecomers join the smallest groups: 4, 5"


def test_clients_that_are_away_keep_their_place_where_groups_continue() -> None:
    question = asked(scheme("arrivals"), PAIRS, Evidence((0, 2, 3, 5)))
    answer = Plan(((0,), (2, 3), (5,)), ())
    assert formed(scheme("arrivals"), Before(PAIRS), question, answer).plan.groups == ((0, 1), (2, 3), (5,))
    assert formed(SCHEMES["hcct"], Before(PAIRS), question, answer).plan.groups == answer.groups


def test_where_groups_are_sampled_the_drawn_ones_train() -> None:
    row, answer = SCHEMES["fedgsp"], Plan(((0, 1), (2, 3), (4,), (5,)), ())
    question = asked(row, None, Evidence(tuple(range(6))))
    teams = formed(row, Before(), question, answer)
    assert teams.plan == answer
    assert teams.sampled == sample(answer.groups, 0.5, rng())
    assert teams.reason == "clients are grouped for the first time; 2 of 4 groups are drawn"


def test_groups_that_no_client_joined_rest_if_only_joined_groups_train() -> None:
    row = scheme("arrivals", after_arrivals="joined")
    first = formed(row, Before(), asked(row, None, Evidence((0, 1, 2, 3))), PAIRS)
    assert first.first_clients == {0, 1, 2, 3}
    answer = Plan(((0, 1), (2, 3), (4,), (5,)), ())
    before = Before(first.plan, first.first_clients - {2})  # the model of client 2 is lost
    teams = formed(row, before, asked(row, first.plan, Evidence(tuple(range(6)))), answer)
    assert teams.sampled == ((2, 3), (4,), (5,))
    assert teams.reason.endswith("only groups train that a client joined or whose models were lost")
    assert teams.first_clients == {0, 1, 3}
    alone = form(CONFIG, row, before, asked(row, answer, Evidence((0, 1, 3))), None, (0, 1, 3), rng())
    assert alone.sampled == alone.plan.groups  # no client that joined is present


def test_the_same_state_gives_the_same_teams() -> None:
    row = SCHEMES["fedgsp"]
    answer = Plan(tuple((client,) for client in range(6)), ())
    question = asked(row, None, Evidence(tuple(range(6))))
    assert formed(row, Before(), question, answer) == formed(row, Before(), question, answer)
