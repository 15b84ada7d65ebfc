"""Makes models of a task from a seed."""

from collections.abc import Callable
from typing import Any

import torch

from fedgsp.task import Task
from fedgsp_node.seeding import seeded


def model_of(task: Task, seed: int, extend: Callable[[torch.nn.Module], Any] = lambda _: None) -> torch.nn.Module:
    """A model of the task from a seed; other threads that seed wait, because they share the generators."""
    with seeded(seed):
        module = task.model()
        extend(module)
        return module
