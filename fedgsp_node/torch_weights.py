"""Ties a torch module's tensors to a `Weights` buffer, so that training writes straight into what will travel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from fedgsp.errors import TaskError
from fedgsp.messages import TensorSpec
from fedgsp.weights import DTYPES, Weights


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters (shared ones once), then the buffers that belong to the state."""
    saved = module.state_dict(keep_vars=True)
    named: dict[str, torch.Tensor] = dict(module.named_parameters())
    named.update({name: buffer for name, buffer in module.named_buffers() if name in saved})
    return named


def tensor_specs(module: torch.nn.Module, head: tuple[str, ...] = ()) -> tuple[TensorSpec, ...]:
    """What a module's weights look like; `head` begins the names of its classifier head's tensors.

    Without `head`, that is the dense layer that was registered last. Raises TaskError for a dtype that cannot travel.
    """
    named = _tensors(module)
    # A tied tensor has one name there; whichever of its names is in the head, it is the head's.
    every_name = {**named, **dict(module.named_parameters(remove_duplicate=False))}
    for prefix in head:
        if not any(name.startswith(prefix) for name in every_name):
            raise TaskError(f"the task's head {prefix!r} begins no tensor's name", f"there are {', '.join(named)}")
    head = head or _last_dense_layer(module)
    in_head = {id(tensor) for name, tensor in every_name.items() if head and name.startswith(head)}
    specs = []
    for name, tensor in named.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise TaskError(f"the model's tensor {name!r} has dtype {dtype}", f"use one of {', '.join(DTYPES)}")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), tensor.requires_grad, id(tensor) in in_head))
    if not any(spec.trainable for spec in specs):
        raise TaskError("the model has no trainable parameter", "return a torch.nn.Module with parameters")
    return tuple(specs)


def _last_dense_layer(module: torch.nn.Module) -> tuple[str, ...]:
    names = [name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    if not names:
        return ()
    return (f"{names[-1]}.",) if names[-1] else ("weight", "bias")  # the module itself is the layer


def bind(module: torch.nn.Module, weights: Weights) -> None:
    """Makes the module's tensors views of the buffer: what one changes, the other shows."""
    for name, tensor in _tensors(module).items():
        tensor.data = torch.from_numpy(weights.arrays[name])


def unbind(module: torch.nn.Module) -> None:
    """Leaves the module's tensors their shapes but no memory of their own, until it is bound."""
    for tensor in _tensors(module).values():
        tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)


def unsaved(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers that are no part of the state."""
    saved = module.state_dict()
    return {name: buffer.clone() for name, buffer in module.named_buffers() if name not in saved}


def reset(module: torch.nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    """Gives buffers these values, whatever the model has made of them."""
    for name, buffer in module.named_buffers():
        if name in buffers:
            buffer.data = buffers[name].clone()


@contextlib.contextmanager
def bound(module: torch.nn.Module, weights: Weights) -> Iterator[None]:
    """Within, the module's tensors are views of these weights; afterwards of what they were before.

    A tensor that a model replaced meanwhile (`self.mean = ...`) is copied back. Raises ValueError if it has another
    shape.
    """
    before = {name: tensor.data for name, tensor in _tensors(module).items()}
    bind(module, weights)
    try:
        yield
    finally:
        tensors = _tensors(module)
        after = {name: tensor.detach() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            tensor.data = before[name]
    for name, tensor in after.items():
        home = torch.from_numpy(weights.arrays[name])
        if tensor.shape != home.shape:
            raise ValueError(f"the model gave its tensor {name!r} the shape {tuple(tensor.shape)}")
        if tensor.data_ptr() != home.data_ptr():
            home.copy_(tensor)


def weights_of(module: torch.nn.Module, head: tuple[str, ...] = ()) -> Weights:
    """A copy of the module's weights."""
    arrays = {name: tensor.detach().numpy() for name, tensor in _tensors(module).items()}
    return Weights.of(arrays, tensor_specs(module, head))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor over the array's memory; a read-only array is copied once, since torch has no such notion."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
