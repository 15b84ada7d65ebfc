"""FedProx (T. Li and others, MLSys 2020; section 6): SGD with a penalty on the distance from the received model."""

from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import descend


def train(work: LocalWork) -> Result:
    """Local epochs on the loss + mu/2 ||w - received||^2; with mu = 0 the result has the same bits as SGD."""
    return descend(work, work.options.mu)


FEDPROX = Algorithm(train)
