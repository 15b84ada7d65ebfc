"""Steps and batches for all local training: the loss is the mean over the mini-batch (section 0)."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from fedgsp_node.devices import moved
from fedgsp_node.training.base import Batch, LocalWork, Result
from fedgsp_node.training.factored import factored_gradients
from fedgsp_node.training.optimized import OptimizedSteps
from fedgsp_node.training.plain import PlainSteps
from fedgsp_node.training.stepping import Steps


@contextlib.contextmanager
def descent(work: LocalWork, scheduled: bool = True) -> Iterator[Steps]:
    """A context for the steps of one client, as `work.stepping` says. It sets the module to training mode.

    Without `scheduled`, each batch is a step of full size, for steps that are not the local epochs of a training.
    """
    work.module.train()
    how = work.stepping
    factor = _factor(work) if scheduled and how.schedule is not None else _whole
    if how.plain:
        with factored_gradients(work.module) as factors:
            steps = PlainSteps(work, factors, factor)
            with steps.early():
                yield steps
        return
    taking = (
        OptimizedSteps(work, factor, how.accumulate, work.states) if scheduled else OptimizedSteps(work, factor, 1)
    )
    try:
        yield taking
        taking.finish()
    finally:
        taking.close()


def _whole(_step: int) -> float:
    return 1.0


def _factor(work: LocalWork) -> Callable[[int], float]:
    """The factor on the step size by the number of the step; the schedule's horizon is that of the training.

    Raises ConfigError for a training with more steps than a given horizon.
    """
    assert work.stepping.schedule is not None
    batch_count = -(-_used(work) // work.settings.batch_size) * work.settings.local_epochs
    steps = -(-batch_count // work.stepping.accumulate)
    factor = functools.partial(work.stepping.schedule.factor, length=steps)
    factor(steps - 1)
    return factor


def batches(work: LocalWork, epochs: int) -> Iterator[Batch]:
    """The batches of `epochs` epochs, each in a new random order, drawn from `work.rng` (seeded in `clients.py`).

    A short last batch is dropped if the task drops it, or if batch norm cannot use it, but not if it is the only batch
    (section 0).
    """
    used = _used(work)
    for _ in range(epochs):
        for rows in torch.split(
            torch.from_numpy(work.rng.permutation(len(work.samples)))[:used], work.settings.batch_size
        ):
            yield batch_of(work, rows)


def batch_of(work: LocalWork, rows: torch.Tensor) -> Batch:
    """The samples with these numbers, transformed, and on the device of the work."""
    x, y = moved(work.task.transform(*work.samples.take(rows), work.generator), work.device)
    return Batch(x, y, rows)


def _used(work: LocalWork) -> int:
    """Number of samples in the batches of an epoch."""
    count, size = len(work.samples), work.settings.batch_size
    short = count % size
    if count > size and (work.task.drop_last or (short == 1 and normalises(work.module))):
        return count - short
    return count


def normalises(module: nn.Module) -> bool:
    """Whether the module has batch norm that is in training mode."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training for layer in module.modules())


def copy(tensors: Iterable[torch.Tensor], into: Iterable[torch.Tensor]) -> None:
    """Copies the values of `tensors` into the tensors `into`."""
    with torch.no_grad():
        for tensor, other in zip(tensors, into, strict=True):
            other.copy_(tensor)


def move(tensors: Iterable[torch.Tensor], anchors: Iterable[torch.Tensor], share: float) -> None:
    """Moves each tensor towards its anchor by `share` (0 to 1) of their distance, in place."""
    with torch.no_grad():
        for tensor, anchor in zip(tensors, anchors, strict=True):
            tensor.lerp_(anchor, share)  # reads memory once, and needs no temporary tensor


def descend(work: LocalWork, strength: float = 0.0) -> Result:
    """Local epochs on the loss + strength/2 ||w - received||^2."""
    with descent(work) as steps:
        anchors = steps.trained(work.received) if strength else []
        for batch in batches(work, work.settings.local_epochs):
            steps.step(batch, work.settings.learning_rate, anchors, strength)
    return Result(steps.loss, steps.norm)
