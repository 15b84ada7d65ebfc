from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from top_server.grouping import GroupingRequest, Plan


def request_for(*clients: int) -> GroupingRequest:
    return GroupingRequest(round=1, groups=1, seed=0, clients=clients, sizes=np.ones(len(clients), np.int64))


def test_a_plan_from_rows_names_clients_and_leaves_the_rest_idle() -> None:
    plan = Plan.from_rows([[3, 0], [2]], request_for(10, 11, 12, 13, 14))
    assert plan == Plan(groups=((10, 13), (12,)), idle=(11, 14))
    plan.check(request_for(10, 11, 12, 13, 14))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(((1, 2), (2, 3)), ()), "client 2 twice, again in group 1"),
        (Plan(((1, 1, 2, 3),), ()), "client 1 twice"),
        (Plan(((1, 2),), (2, 3)), "client 2 twice, again in idle"),
        (Plan(((1, 2), ()), (3,)), "group 1 of the plan is empty"),
        (Plan((), (1, 2, 3)), "no group"),
        (Plan(((1, 2, 3, 4),), ()), "not asked about: 4"),
        (Plan(((1, 2, 3),), (9,)), "not asked about: 9"),
        (Plan(((1, 2),), ()), "neither grouped nor idle: 3"),
        (Plan((tuple(range(1, 33)),), ()), r"4, 5, .*, 13 and 19 more"),
    ],
)
def test_a_plan_that_does_not_fit_the_request_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan.check(request_for(1, 2, 3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clients": ()}, "count from 1"),
        ({"groups": 0}, "count from 1"),
        ({"clients": (1, 1)}, "listed twice"),
        ({"sizes": np.ones(3, np.int64)}, r"sizes have shape \(3,\) for 2"),
        ({"histograms": np.ones((3, 4), np.int64)}, r"histograms have shape \(3, 4\)"),
        ({"histograms": np.ones((2, 4))}, "must be counts"),
        ({"histograms": np.full((2, 4), -1)}, "must be counts"),
        ({"matrices": {"cosine": np.ones((3, 2))}}, r"'cosine' has shape \(3, 2\)"),
        ({"learning_rate": 0.0}, "a learning rate of 0.0"),
        ({"learning_rate": float("nan")}, "a learning rate of nan"),
        ({"newcomers": (3,)}, "newcomers that are not among the clients: 3"),
    ],
)
def test_evidence_that_does_not_fit_the_clients_is_refused(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"round": 1, "groups": 1, "seed": 0, "clients": (1, 2), "sizes": np.ones(2, np.int64)}
    with pytest.raises(ValueError, match=message):
        GroupingRequest(**{**good, **fields})
