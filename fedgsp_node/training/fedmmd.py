"""FedMMD (X. Yao and others, VCIP 2018; section 6): SGD that keeps the outputs near those of the received model.

The distance of the two streams is the maximum mean discrepancy of a batch, with a sum of Gaussian kernels.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fedgsp.errors import TaskError
from fedgsp_node.model.nested import mapped
from fedgsp_node.model.torch_weights import classifier
from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.frozen import Frozen
from fedgsp_node.training.steps import batches, descent

#: The variances of the kernels, as in the authors' release.
VARIANCES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6)
#: Discrepancies below this count as this much, and have no gradient.
FLOOR = 1e-4


def train(work: LocalWork) -> Result:
    """Local epochs on the loss + lambda max(MMD^2, FLOOR). The result has the loss alone."""
    rate, frozen = work.settings.learning_rate, Frozen(work)
    strength: float = work.options.strength
    with _view(work) as view, descent(work) as steps:
        for batch in batches(work, work.settings.local_epochs):
            with frozen.stream():
                theirs = view(work.module(mapped(torch.clone, batch.x)))  # a model may change its input in place

            def penalty(outputs: Any, theirs: torch.Tensor = theirs) -> torch.Tensor:
                return strength * discrepancy(theirs, view(outputs)).clamp(min=FLOOR)

            steps.step(batch, rate, penalty=penalty)
    return Result(steps.loss, steps.norm)


def discrepancy(some: torch.Tensor, others: torch.Tensor, variances: Sequence[float] = VARIANCES) -> torch.Tensor:
    """The biased MMD^2 of two batches of shapes (n, d) and (m, d).

    It has means over all pairs; the pairs of a row with itself count too. A kernel of variance s is
    exp(-||u - v||^2 / (2 s)); the kernels are summed.
    """
    scales = torch.tensor([1 / (2 * variance) for variance in variances], dtype=some.dtype, device=some.device)

    def mean(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # From differences: a Gram matrix would lose the small distances, which the smallest variance magnifies.
        distances = torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist").square()
        return torch.exp(-scales[:, None, None] * distances).sum(dim=0).mean()

    return mean(some, some) + mean(others, others) - 2 * mean(some, others)


@contextlib.contextmanager
def _view(work: LocalWork) -> Iterator[Callable[[Any], torch.Tensor]]:
    """A function from what the model returned for a batch to what is compared, of shape (n, d)."""
    if work.options.of == "logits":
        yield _rows
        return
    layer = classifier(work.module, tuple(work.task.head))
    if layer is None:
        raise TaskError("the model's head has no nn.Linear, whose inputs are the features", "give option of=logits")
    last: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))

    def features(_outputs: Any) -> torch.Tensor:
        if not last:
            raise TaskError("the model does not call its last dense layer", "give option of=logits")
        found = _rows(last[-1])
        last.clear()
        return found

    try:
        yield features
    finally:
        hook.remove()


def _rows(values: Any) -> torch.Tensor:
    """Values of shape (n, ...) as (n, d)."""
    if not isinstance(values, torch.Tensor):
        raise TaskError(f"training fedmmd cannot compare a {type(values).__name__}", "give option of=features")
    rows = values.reshape(len(values), -1)
    return rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows  # kernels magnify roundings


FEDMMD = Algorithm(train)
