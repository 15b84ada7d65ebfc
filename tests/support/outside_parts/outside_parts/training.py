"""SGD with a shrinking step size, and a training that fails."""

from __future__ import annotations

from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.steps import batches, descent


def train(work: LocalWork) -> Result:
    """Local epochs; the step size shrinks from one epoch to the next."""
    rate, count = work.settings.learning_rate, 0
    with descent(work) as steps:
        for _ in range(work.settings.local_epochs):
            for batch in batches(work, 1):
                steps.step(batch, rate)
                count += 1
            rate *= work.options.shrink
    return Result(steps.loss, count)


def fail(work: LocalWork) -> Result:
    """Raises ZeroDivisionError."""
    raise ZeroDivisionError("nobody can train here")


SIGNED_SGD = Algorithm(train, in_place=True)
FAILING_SGD = Algorithm(fail)
