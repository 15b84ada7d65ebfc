"""Local SGD, as in FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import descend


def train(work: LocalWork) -> Result:
    """Local epochs on the loss; the steps are the batches."""
    return descend(work)


SGD = Algorithm(train, in_place=True)
