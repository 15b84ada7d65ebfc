"""pFedMe (C. T. Dinh and others, NeurIPS 2020; section 6): the shared model moves towards a personal model."""

from fedgsp_node.model.arrays import array_of
from fedgsp_node.model.named_state import state_of
from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import batches, copy, descent, move


def train(work: LocalWork) -> Result:
    """Local epochs of algorithm 1 of the paper. For each batch, with w the shared model:

    theta starts from w and takes `personal_steps` steps on the loss + lambda/2 ||theta - w||^2, then
    w = w - rate lambda (w - theta). The last theta is the personal model. Each batch counts as one step.
    """
    assert work.personal is not None
    strength, count = work.options.pull, 0
    with descent(work) as steps:
        shared, theta = [parameter.data for parameter in steps.parameters], steps.trained(work.personal)
        with steps.at(theta):
            for batch in batches(work, work.settings.local_epochs):
                copy(shared, theta)
                for _ in range(work.options.personal_steps):
                    steps.step(batch, work.options.personal_rate, shared, strength)
                move(shared, theta, work.settings.learning_rate * strength)
                count += 1
        steps.store(theta, work.personal)
    # Only passes of the personal model update the buffers (batch norm). Both models get these values.
    state = state_of(work.module)
    for spec in work.personal.tensors:
        if not spec.trainable:
            work.personal.arrays[spec.name][...] = array_of(state[spec.name])
    return Result(steps.loss, count)


PFEDME = Algorithm(train)
