"""Evaluation of a model on one client's test part."""

from __future__ import annotations

import torch

from fedgsp.task import Task
from fedgsp_node.training.control import Control

BATCH_SIZE = 256


def evaluate(
    module: torch.nn.Module, task: Task, x: torch.Tensor, y: torch.Tensor, control: Control
) -> tuple[int, float]:
    """Number of samples that are right and the sum of their losses."""
    module.eval()
    correct, loss_sum = 0, 0.0
    with torch.inference_mode():
        for begin in range(0, len(x), BATCH_SIZE):
            outputs, targets = module(x[begin : begin + BATCH_SIZE]), y[begin : begin + BATCH_SIZE]
            correct += task.correct(outputs, targets)
            loss_sum += float(task.loss(outputs, targets)) * len(targets)
            control.tick()
    return correct, loss_sum
