"""Local SGD, as in FedAvg (H. B. McMahan and others, AISTATS 2017)."""

from __future__ import annotations

from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import descend


def train(work: LocalWork) -> Result:
    """Local epochs on the loss. Each batch is one step."""
    return descend(work)


SGD = Algorithm(train, in_place=True)
