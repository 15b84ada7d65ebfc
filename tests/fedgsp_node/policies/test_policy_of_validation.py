"""The policy of a node takes an evaluation on validation data for one on test data."""

from __future__ import annotations

import pytest

from fedgsp.messages import Evaluate, HostedClient
from fedgsp.settings.policy import WORK
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.order_error import OrderError
from fedgsp_node.policies.guard import Guard
from fedgsp_node.policies.policy import refusal
from tests.fedgsp_node.policies.test_policy import KNOWN, START, order, policy


def test_an_evaluation_on_validation_data_counts_as_one_on_test_data() -> None:
    guard = Guard([HostedClient(0, 100, 10)], ModelStore(), policy(most_evaluations_per_round="1"))
    with guard.passing(order(Evaluate(START))):
        pass
    with pytest.raises(OrderError), guard.passing(order(Evaluate(START, validation_part=True))):
        pass
    others = policy(work=",".join(other for other in WORK if other != "evaluate"))
    assert "kind evaluate" in str(refusal(order(Evaluate(START, validation_part=True)), others, KNOWN))
