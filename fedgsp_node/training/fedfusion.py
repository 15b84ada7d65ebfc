"""FedFusion (X. Yao and others, ICIP 2019; section 6): SGD on features fused with those of the received model."""

from __future__ import annotations

from fedgsp.errors import TaskError
from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.frozen import Frozen
from fedgsp_node.training.fusion import Fusion, extend
from fedgsp_node.training.steps import batches, descent


def train(work: LocalWork) -> Result:
    """Local epochs on the loss of C(F(E(x), E_received(x))): extractor E, fusion F and classifier C are trained."""
    fusion, rate, count, frozen = work.added, work.settings.learning_rate, 0, Frozen(work)
    if not isinstance(fusion, Fusion):
        raise TaskError(
            "the model of this node has no fusion, because the run began with another training", "start a new run"
        )
    with descent(work) as steps:
        for x, y in batches(work, work.settings.local_epochs):
            with frozen.stream():
                theirs = fusion.features(x.clone())  # a model may change its input in place
            with fusion.beside(theirs):
                steps.step(x, y, rate)
            count += 1
    return Result(steps.loss, count)


FEDFUSION = Algorithm(train, extend=extend)
