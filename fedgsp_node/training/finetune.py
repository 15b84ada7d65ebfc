"""Fine-tuning: a few steps on the client's own data before its model is used, which nobody else sees."""

from __future__ import annotations

import itertools

from fedgsp_node.training.base import LocalWork
from fedgsp_node.training.steps import batches, descent


def adapt(work: LocalWork) -> None:
    """So many steps, one a batch; goes through the data again, in another order, where one pass has fewer batches."""
    count = int(work.options["steps"])
    with descent(work) as steps:
        for x, y in itertools.islice(batches(work, epochs=count), count):
            steps.step(x, y, work.settings.learning_rate)
