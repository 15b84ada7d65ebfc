"""Fine-tuning (section 6): a few steps on the client's data before its model is evaluated. They stay local."""

import itertools

from fedgsp_node.training.base import Algorithm, LocalWork
from fedgsp_node.training.steps import batches, descend, descent, normalises


def adapt(work: LocalWork) -> None:
    """Takes the number of steps in the option `steps`, each on one batch, in as many epochs as this needs.

    A model with batch norm is not changed if the client has only one sample, because batch norm needs two.
    """
    count = work.options.steps
    work.module.train()
    if len(work.samples) == 1 and normalises(work.module):
        return
    with descent(work, scheduled=False) as steps:
        for batch in itertools.islice(batches(work, epochs=count), count):
            steps.step(batch, work.settings.learning_rate)


FINETUNE = Algorithm(descend, in_place=True, adapt=adapt)
