"""Evaluation of a model on one part of a client's data."""

from __future__ import annotations

import torch

from fedgsp.task import Task
from fedgsp_node.training.control import Control

BATCH_SIZE = 256


def evaluate(
    module: torch.nn.Module, task: Task, x: torch.Tensor, y: torch.Tensor, control: Control
) -> tuple[int, float, dict[str, float]]:
    """Number of samples that are right, the sum of their losses, and the task's further figures."""
    module.eval()
    correct, loss_sum = 0, 0.0
    # Only a task that computes figures over all outputs makes this keep them.
    keeps_outputs = type(task).metrics is not Task.metrics
    kept: list[torch.Tensor] = []
    with torch.inference_mode():
        for begin in range(0, len(x), BATCH_SIZE):
            outputs, targets = module(x[begin : begin + BATCH_SIZE]), y[begin : begin + BATCH_SIZE]
            correct += task.correct(outputs, targets)
            loss_sum += float(task.loss(outputs, targets)) * len(targets)
            if keeps_outputs:
                kept.append(outputs)
            control.tick()
        figures = task.metrics(torch.cat(kept), y) if kept else {}
    return correct, loss_sum, {name: float(value) for name, value in figures.items()}
