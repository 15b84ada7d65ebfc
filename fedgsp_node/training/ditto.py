"""Ditto (T. Li and others, ICML 2021; section 6): SGD on the shared model, and a personal model kept near it."""

from fedgsp_node.model.torch_weights import bound
from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import descend


def train(work: LocalWork) -> Result:
    """Local epochs of SGD, then as many epochs for the personal model v on the loss + lambda/2 ||v - received||^2."""
    assert work.personal is not None
    result = descend(work)
    with bound(work.module, work.personal):
        descend(work, work.options.pull)
    return result


DITTO = Algorithm(train)
