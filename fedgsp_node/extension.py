"""What the training of a run adds to the model of the task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedgsp.messages import TensorSpec
from fedgsp.trainings import TRAININGS, added


@dataclass(frozen=True, slots=True)
class Extension:
    """What is added to the model of the task."""

    tensors: tuple[TensorSpec, ...] = ()
    #: Adds it to a model, and returns what the training gets as `LocalWork.added`.
    extend: Callable[[torch.nn.Module], Any] = lambda _module: None


def extension(
    training: str, given: Mapping[str, str], features: TensorSpec | None, model: tuple[TensorSpec, ...]
) -> Extension:
    """The extension by a training with these options, for a model with these tensors; an empty name stands for none.

    It is empty also if the task names no features, or if the model has tensors of the same names: the top server ends
    such a run with the reason. Raises ConfigError for an unknown training or option.
    """
    tensors = added(training, given, features) if training else ()
    if not tensors or {spec.name for spec in tensors} & {spec.name for spec in model}:
        return Extension()
    part = TRAININGS[training]
    algorithm, options = part.load(), part.read(given)

    def extend(module: torch.nn.Module) -> Any:
        with part.guard():
            return algorithm.extend(module, features, options)

    return Extension(tensors, extend)
