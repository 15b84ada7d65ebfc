"""pFedMe (Dinh et al., 2020): a personal model near the shared one, which is drawn towards it."""

from __future__ import annotations

from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import batches, copy, descent, move


def train(work: LocalWork) -> Result:
    """Per batch, theta by steps from w on the loss + lambda/2 ||theta - w||^2; then w -= rate lambda (w - theta).

    The last theta is the personal model. The steps are those of w, one a batch.
    """
    assert work.personal is not None
    strength, personal_rate = work.options.pull, work.options.personal_rate
    count = 0
    with descent(work) as steps:
        shared, theta = [parameter.data for parameter in steps.parameters], steps.trained(work.personal)
        with steps.at(theta):
            for x, y in batches(work, work.settings.local_epochs):
                copy(shared, theta)
                for _ in range(work.options.personal_steps):
                    steps.step(x, y, personal_rate, shared, strength)
                move(shared, theta, work.settings.learning_rate * strength)
                count += 1
    # Statistics are gathered in the personal model's passes only, and belong to both.
    state = work.module.state_dict()
    for spec in work.personal.tensors:
        if not spec.trainable:
            work.personal.arrays[spec.name][...] = state[spec.name].numpy()
    return Result(steps.loss, count)


PFEDME = Algorithm(train)
