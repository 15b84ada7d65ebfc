"""A rehearsal when a node starts: it finds mistakes in a task before the first round."""

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
    """Calls the model and the task's methods with a few samples of both parts; raises TaskError if a call fails.

    The model is in evaluation mode, and no gradient is computed.
    """
    module.eval()
    for name, part in (("training", train), ("test", test)):
        if len(part):
            _rehearse(module, task, name, part)
    _try_histogram(task, train)


def _rehearse(module: torch.nn.Module, task: Task, name: str, part: Split) -> None:
    # Copies: a model may change its input in place, which must not change the data.
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
        raise TaskError("the task's loss() returned a tensor without a gradient", "compute the loss from `outputs`")


def _check_count(count: int, samples: int) -> None:
    if not 0 <= count <= samples:
        raise TaskError(
            f"the task's correct() counts {count} of {samples} samples",
            "return the number of correct samples of the batch",
        )


def _try_histogram(task: Task, train: Split) -> None:
    """Logs a mistake as a warning only: the node does not know whether the run's scheme uses class histograms."""
    try:
        histogram(task.class_counts(train), task.num_classes)
    except (Exception, SystemExit) as error:
        logger.warning("the task has no class histograms, which the scheme fedgsp needs: %s", where(error))
