"""Evaluation of a model on one part of a client's data."""

from __future__ import annotations

import logging
from typing import Any

import torch

from fedgsp.task import Task
from fedgsp_node.training.control import Control
from fedgsp_node.users_code import numbers, where, whole

logger = logging.getLogger(__name__)

#: Samples that are evaluated together, at the most; fewer of large ones, whose activations would leave the cache.
BATCH_SIZE, LEAST_BATCH_SIZE, BATCH_BYTES = 256, 32, 1 << 20


def evaluate(
    module: torch.nn.Module, task: Task, x: torch.Tensor, y: torch.Tensor, control: Control
) -> tuple[int, float, dict[str, float]]:
    """Number of samples that are right, the sum of their losses, and the task's further figures."""
    module.eval()
    correct, loss_sum, together = 0, 0.0, batch_size(x)
    # Only a task that computes figures over all outputs makes this keep them.
    keeps_outputs = type(task).metrics is not Task.metrics
    kept: list[Any] = []
    with torch.inference_mode():
        for begin in range(0, len(x), together):
            # Copies: what a model or a loss does to them in place must not reach the data.
            inputs, targets = x[begin : begin + together].clone(), y[begin : begin + together].clone()
            outputs = module(inputs)
            correct += whole(task.correct(outputs, targets))
            loss_sum += float(task.loss(outputs, targets)) * len(targets)
            if keeps_outputs:
                kept.append(outputs)
            control.tick()
        figures = _figures(task, kept, y) if kept else {}
    return correct, loss_sum, figures


def _figures(task: Task, kept: list[Any], y: torch.Tensor) -> dict[str, float]:
    """Further figures; where they fail there are none, for accuracy and loss are there all the same."""
    try:
        return numbers(task.metrics(_joined(kept), y.clone()))
    except Exception as error:
        logger.warning("the task's metrics() gave no figures: %s", where(error))
        return {}


def _joined(kept: list[Any]) -> Any:
    """Outputs of several batches as those of one: tensors, or tuples, lists and dicts of what can be joined."""
    first = kept[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(kept)
    if isinstance(first, dict):
        return {name: _joined([outputs[name] for outputs in kept]) for name in first}
    if isinstance(first, tuple | list):
        parts = [_joined(list(part)) for part in zip(*kept, strict=True)]
        # named tuples take their parts one by one
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise TypeError(f"the model returned {type(first).__name__}: batches of it cannot be joined for metrics()")


def batch_size(x: torch.Tensor) -> int:
    """How many of the samples x, shape (N, ...), are evaluated together."""
    sample_bytes = max(1, x[:1].numel() * x.element_size())
    return max(LEAST_BATCH_SIZE, min(BATCH_SIZE, BATCH_BYTES // sample_bytes))
