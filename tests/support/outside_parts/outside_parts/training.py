"""SGD with a shrinking step size, FedDyn, which keeps tensors, and trainings that fail."""

from __future__ import annotations

import torch

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


def dynamic(work: LocalWork) -> Result:
    """FedDyn (Acar and others, ICLR 2021; algorithm 1): the loss - <g, w> + alpha/2 ||w - received||^2.

    The client keeps g, which is 0 at first and becomes g - alpha (w - received). Completing the square, both terms are
    alpha/2 ||w - (received + g / alpha)||^2, up to a constant: a pull towards other anchors.
    """
    alpha = work.options.alpha
    with descent(work) as steps:
        names = [name for name, one in work.module.named_parameters() if one.requires_grad]
        received = steps.trained(work.received)
        kept = [
            work.kept.get(name, torch.zeros_like(one)).to(work.device)
            for name, one in zip(names, received, strict=True)
        ]
        anchors = [one + g / alpha for one, g in zip(received, kept, strict=True)]
        for batch in batches(work, work.settings.local_epochs):
            steps.step(batch, work.settings.learning_rate, anchors, alpha)
    for name, now, one, g in zip(names, steps.parameters, received, kept, strict=True):
        work.kept[name] = (g - alpha * (now.detach() - one)).cpu()
    return Result(steps.loss, steps.norm)


def leave_undeclared(work: LocalWork) -> Result:
    """Leaves a tensor, although its declaration does not say so."""
    work.kept["secret"] = torch.zeros(2)
    return Result(0.0, 1.0)


def fail(work: LocalWork) -> Result:
    """Raises ZeroDivisionError."""
    raise ZeroDivisionError("nobody can train here")


SIGNED_SGD = Algorithm(train, in_place=True)
DYNAMIC = Algorithm(dynamic)
UNDECLARED = Algorithm(leave_undeclared)
FAILING_SGD = Algorithm(fail)
