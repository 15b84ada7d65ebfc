"""Makes models of a task from a seed."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from fedgsp.task import Task
from fedgsp_node.seeding import seed_all

_MAKING = threading.Lock()


def model_of(task: Task, seed: int, extend: Callable[[torch.nn.Module], Any] = lambda _: None) -> torch.nn.Module:
    """A model of the task from a seed; other threads that make models wait, because they share the generators."""
    with _MAKING:
        seed_all(seed)
        module = task.model()
        extend(module)
        return module
