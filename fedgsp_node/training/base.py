"""What a local training algorithm is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fedgsp.messages import TrainingSettings
from fedgsp.task import Task
from fedgsp.weights import Weights
from fedgsp_node.training.control import Control


@dataclass(slots=True)
class LocalWork:
    """One client's local work; the module's tensors are views of the weights that it changes in place."""

    module: torch.nn.Module
    task: Task
    x: torch.Tensor
    y: torch.Tensor
    settings: TrainingSettings
    #: The options of the training, as its declaration describes them.
    options: Any
    #: Decides the order of the batches.
    rng: np.random.Generator
    control: Control
    #: The model as it came; not to be changed.
    received: Weights
    #: For algorithms that keep one: the personal model of last time, at first a copy of what came; changed in place.
    personal: Weights | None = None


class Result(NamedTuple):
    """Mean loss over the samples seen, and the normalising sum of the local steps (FedNova)."""

    loss: float
    steps: float


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a client trains, and what it is evaluated with."""

    #: Trains the bound module in place.
    train: Callable[[LocalWork], Result]
    #: Whether it never looks at the model as it came, which then may be the one that is trained.
    in_place: bool = False
    #: Steps on the model before it is evaluated for this client, in place; None if it is evaluated as it is.
    adapt: Callable[[LocalWork], None] | None = None
