"""A rehearsal when a node starts: mistakes in a task are told before anybody has waited for a round."""

from __future__ import annotations

import logging
from typing import Any

import torch

from fedgsp.errors import TaskError
from fedgsp.task import Split, Task
from fedgsp_node.torch_weights import as_tensor
from fedgsp_node.users_code import guarded, histogram, numbers, where, whole

logger = logging.getLogger(__name__)

_SAMPLES = 2


def rehearse(module: torch.nn.Module, task: Task, train: Split, test: Split) -> None:
    """Takes a few samples of both parts through the model and the task's methods; raises TaskError for what fails.

    The model is in evaluation mode, and no gradient is taken.
    """
    module.eval()
    for name, part in (("training", train), ("test", test)):
        if len(part):
            _rehearse(module, task, name, part)
    _try_histogram(task, train)


def _rehearse(module: torch.nn.Module, task: Task, name: str, part: Split) -> None:
    # Copies: what a model does to them in place must not reach the data.
    x, y = as_tensor(part.x[:_SAMPLES]).clone(), as_tensor(part.y[:_SAMPLES]).clone()
    learned_from = guarded(lambda: module(x.clone()), f"model() on samples of a {name} part")
    _check_loss(guarded(lambda: task.loss(learned_from, y), f"loss() on samples of a {name} part"))
    with torch.inference_mode():
        outputs = module(x)
        _check_count(guarded(lambda: whole(task.correct(outputs, y)), "correct()"), len(y))
        guarded(lambda: numbers(task.metrics(outputs, y)), "metrics()")


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise TaskError(
            f"the task's loss() returned {shown}", "return the mean over the batch, a tensor of one number"
        )
    if not loss.requires_grad:
        raise TaskError("nothing can be learned from what the task's loss() returned", "compute it from `outputs`")


def _check_count(count: int, samples: int) -> None:
    if not 0 <= count <= samples:
        raise TaskError(
            f"the task's correct() counts {count} of {samples} samples",
            "override correct() to count samples, not more",
        )


def _try_histogram(task: Task, train: Split) -> None:
    """A fault is told but not refused: what the run does with histograms, if anything, is not known here."""
    try:
        histogram(task.class_counts(train), task.num_classes)
    except (Exception, SystemExit) as error:
        logger.warning("the task gives no class histograms, which FedGSP groups by: %s", where(error))
