"""Fine-tuning: a few steps on the client's own data before its model is used, which nobody else sees."""

from __future__ import annotations

import itertools

from fedgsp_node.training import sgd
from fedgsp_node.training.base import Algorithm, LocalWork
from fedgsp_node.training.steps import batches, descent, normalises


def adapt(work: LocalWork) -> None:
    """So many steps, one a batch; goes through the data again, in another order, where one pass has fewer batches.

    The only sample of a client is no batch for batch norm: its model is used as it came.
    """
    count = work.options.steps
    if len(work.x) == 1 and normalises(work.module):
        return
    with descent(work) as steps:
        for x, y in itertools.islice(batches(work, epochs=count), count):
            steps.step(x, y, work.settings.learning_rate)


FINETUNE = Algorithm(sgd.train, in_place=True, adapt=adapt)
