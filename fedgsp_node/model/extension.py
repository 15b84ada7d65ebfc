"""What a run adds to the model of the task: tensors of its training, and the state of its optimiser."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fedgsp.messages import Additions, TensorSpec
from fedgsp.tensors.additions import added_tensors, clash
from fedgsp.trainings import TRAININGS


@dataclass(frozen=True, slots=True)
class Extension:
    """What is added to the model of the task."""

    tensors: tuple[TensorSpec, ...] = ()
    #: Adds what the training adds to a model, and returns what the training gets as `LocalWork.added`.
    extend: Callable[[torch.nn.Module], Any] = lambda _module: None


def extension(additions: Additions | None, features: TensorSpec | None, model: tuple[TensorSpec, ...]) -> Extension:
    """The extension of a model with these tensors.

    It is empty if the model has tensors of the same names: the top server ends such a run with the reason. A training
    adds nothing if the task names no features. Raises ConfigError for an unknown name or option.
    """
    tensors = added_tensors(additions, model, features)
    if additions is None or not tensors or clash(model, tensors):
        return Extension()
    if not additions.training or features is None:
        return Extension(tensors)
    part = TRAININGS[additions.training]
    algorithm, options = part.load(), part.read(additions.training_options)

    def extend(module: torch.nn.Module) -> Any:
        with part.guard():
            return algorithm.extend(module, features, options, model)

    return Extension(tensors, extend)
