"""FedProx (Li et al., 2020): what is trained is drawn back to the model as it came."""

from __future__ import annotations

from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import descend


def train(work: LocalWork) -> Result:
    """Local epochs on the loss + mu/2 ||w - received||^2; with mu 0 bit for bit those of SGD."""
    return descend(work, work.options.mu)


FEDPROX = Algorithm(train)
