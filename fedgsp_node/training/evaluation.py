"""Evaluation of a model on one part of a client's data."""

from __future__ import annotations

import torch

from fedgsp.task import Task
from fedgsp_node.training.control import Control

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
    kept: list[torch.Tensor] = []
    with torch.inference_mode():
        for begin in range(0, len(x), together):
            outputs, targets = module(x[begin : begin + together]), y[begin : begin + together]
            correct += task.correct(outputs, targets)
            loss_sum += float(task.loss(outputs, targets)) * len(targets)
            if keeps_outputs:
                kept.append(outputs)
            control.tick()
        figures = task.metrics(torch.cat(kept), y) if kept else {}
    return correct, loss_sum, {name: float(value) for name, value in figures.items()}


def batch_size(x: torch.Tensor) -> int:
    """How many of the samples x, shape (N, ...), are evaluated together."""
    sample_bytes = max(1, x[:1].numel() * x.element_size())
    return max(LEAST_BATCH_SIZE, min(BATCH_SIZE, BATCH_BYTES // sample_bytes))
