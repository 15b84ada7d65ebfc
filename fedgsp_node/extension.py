"""The features of a task's model, and what the training of a run adds to that model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedgsp.errors import TaskError
from fedgsp.messages import TensorSpec
from fedgsp.trainings import TRAININGS, added
from fedgsp_node.users_code import guarded


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


def features_of(module: torch.nn.Module, layer: str, x: torch.Tensor) -> TensorSpec:
    """Layer, dtype and number of channels of the features of samples `x`, shape (n, ...).

    Raises TaskError unless the model has that layer, calls it, and gets from it floats of shape (n, channels, ...).
    """
    names = [name for name, _ in module.named_modules() if name]
    if layer not in names:
        raise TaskError(f"the model has no layer {layer!r}, which the task names as `extractor`", _choose(names))
    found: list[Any] = []
    hook = module.get_submodule(layer).register_forward_hook(lambda _layer, _inputs, output: found.append(output))
    try:
        module.eval()
        with torch.inference_mode():
            guarded(lambda: module(x.clone()), "model()")
    finally:
        hook.remove()
    if not found:
        raise TaskError(
            f"the model does not call the layer {layer!r}, which the task names as `extractor`", _choose(names)
        )
    output = found[0]
    if not (
        isinstance(output, torch.Tensor) and output.is_floating_point() and output.ndim > 1 and len(output) == len(x)
    ):
        shown = f"shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise TaskError(
            f"the layer {layer!r} returns no features, but {shown}", "name a layer with floats per channel"
        )
    return TensorSpec(layer, str(output.dtype).removeprefix("torch."), (output.shape[1],))


def _choose(names: list[str]) -> str:
    return f"name one of {', '.join(names)}" if names else "give the model a layer"
