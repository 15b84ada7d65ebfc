"""Local SGD: no momentum, no weight decay, mean loss over the mini-batch, the short last batch kept (section 0)."""

from __future__ import annotations

import numpy as np
import torch

from fedgsp.messages import TrainingSettings
from fedgsp.task import Task
from fedgsp_node.training.control import Control
from fedgsp_node.training.factored import factored_gradients


def train(
    module: torch.nn.Module,
    task: Task,
    x: torch.Tensor,
    y: torch.Tensor,
    settings: TrainingSettings,
    rng: np.random.Generator,
    control: Control,
) -> float:
    """Trains in place, reshuffling every local epoch with `rng`; returns the mean loss over the samples seen."""
    module.train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    total, seen = 0.0, 0
    with factored_gradients(module) as factors:
        for _ in range(settings.local_epochs):
            order = torch.from_numpy(rng.permutation(len(x)))
            for batch in torch.split(order, settings.batch_size):
                loss = task.loss(module(x[batch]), y[batch])
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        if gradient is not None:
                            parameter.add_(gradient, alpha=-settings.learning_rate)
                    for weight, grad, inputs in factors:
                        weight.addmm_(grad.t(), inputs, alpha=-settings.learning_rate)
                factors.clear()
                total += loss.item() * len(batch)
                seen += len(batch)
                control.tick()
    return total / seen
