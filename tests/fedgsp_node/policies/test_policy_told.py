"""What the owner of a node reads in its log about orders that the policy has refused."""

from __future__ import annotations

import pytest

from fedgsp.messages import Describe, Order, OrderKey, Release
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.order_error import OrderError
from fedgsp_node.policies.guard import Guard
from tests.fedgsp_node.policies.test_policy import TRAIN, guard, order, refused


def test_a_refusal_names_the_client_and_the_round(caplog: pytest.LogCaptureFixture) -> None:
    refused(guard(work="train"), Describe(), 7)
    (line,) = caplog.messages
    assert line.startswith("round=7 client=0 refused: it asks for work of kind describe")
    assert "--allow work=describe" in line


def test_a_limit_of_many_orders_tells_that_more_may_be_needed() -> None:
    g = guard(most_trainings_per_round="2")
    reasons = [refused(g, TRAIN, 1) for _ in range(3)]
    assert reasons[2].endswith("(--allow most_trainings_per_round=3 at least: later orders count too)")
    assert refused(guard(least_batch_size="50"), TRAIN, 1).endswith("(--allow least_batch_size=5)")  # this is enough


def test_a_local_run_has_no_count_of_its_own() -> None:
    g, passed = guard(most_trainings_per_round="2"), []
    for run in ("run", "run.alone", "run", "run.alone"):
        try:
            with g.passing(Order(OrderKey(1, "x", 0, 0, 0, run), 0, TRAIN)):
                passed.append(True)
        except OrderError:
            passed.append(False)
    assert passed == [True, True, False, False]


def test_a_node_whose_orders_were_all_refused_says_so_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    g = guard(work="train", training="fedprox")
    for number in range(3):
        refused(g, Describe(), number)
    refused(g, TRAIN, 3)
    refused(g, Release(("a",)), 3)  # always passes, and does not count
    caplog.clear()
    g.sum_up()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(
        "the policy of this node refused 4 of 4 orders; for 3 of them the reason was"
    )
    assert "(--allow work=describe)" in record.getMessage()


def test_networks_that_are_too_large_are_a_refused_order(caplog: pytest.LogCaptureFixture) -> None:
    g = guard(most_model_bytes="100")
    with pytest.raises(OrderError, match="networks of 101 bytes"), g.passing(order(Describe())):
        g.check_size(101)
    assert caplog.messages[0].startswith("round=1 client=0 refused: networks of 101 bytes")
    g.sum_up()
    assert "refused 1 of 1 order; for all of them" in caplog.messages[1]


def test_a_node_that_has_refused_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Guard([], ModelStore()).sum_up()
    assert caplog.messages == []


def test_refusals_are_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 0.0, 1.0, 2.0, 6.0, 6.0])
    g = Guard([], ModelStore(), now=lambda: next(times))
    for number in range(4):
        g.log(f"order {number}")
    assert [record.getMessage() for record in caplog.records] == [
        "refused: order 0",
        "refused: order 3 (2 other refusals since the last line)",
    ]
