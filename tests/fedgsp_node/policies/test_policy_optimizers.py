"""A policy lists the optimisers that a node takes."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import Evaluate, OptimizerSettings
from fedgsp_node.policies.policy import refusal
from tests.fedgsp_node.policies.test_policy import KNOWN, SETTINGS, START, TRAIN, order, policy


@pytest.mark.parametrize("named", [None, "adam"])
def test_optimisers_that_are_not_listed_are_refused(named: str | None) -> None:
    optimizer = None if named is None else OptimizerSettings(named)
    settings = dataclasses.replace(SETTINGS, optimizer=optimizer)
    for work in (dataclasses.replace(TRAIN, settings=settings), Evaluate(START, settings=settings, personalised=True)):
        told = str(refusal(order(work), policy(optimizer="sgd"), KNOWN))
        assert f"it asks for optimiser '{named or 'auto'}'" in told
        assert f"(--allow optimizer={named or 'auto'})" in told
        assert refusal(order(work), policy(optimizer="a*"), KNOWN) is None
