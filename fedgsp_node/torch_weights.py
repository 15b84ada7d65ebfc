"""Makes the tensors of a torch module views of a `Weights` buffer, so that training writes into the bytes to send."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from fedgsp.messages import TensorSpec
from fedgsp.weights import DTYPES, Weights
from fedgsp_node.require import require


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters (a shared one only once), then the buffers that state_dict() includes, by name."""
    saved = module.state_dict(keep_vars=True)
    named: dict[str, torch.Tensor] = dict(module.named_parameters())
    named.update({name: buffer for name, buffer in module.named_buffers() if name in saved})
    return named


def tensor_specs(module: torch.nn.Module, head: tuple[str, ...] = ()) -> tuple[TensorSpec, ...]:
    """Name, dtype and shape of each tensor of a module, and whether it is trainable and part of the head.

    The classifier head has the tensors whose names begin with an entry of `head`; by default, it is the dense layer
    that was registered last. Raises TaskError for a dtype that cannot be sent, for a wrong `head`, and for a module
    without trainable parameters.
    """
    named = _tensors(module)
    # A shared parameter has one name in `named`. It belongs to the head if any of its names does.
    every_name = {**named, **dict(module.named_parameters(remove_duplicate=False))}
    for prefix in head:
        require(
            any(name.startswith(prefix) for name in every_name),
            f"no tensor's name begins with the task's head {prefix!r}",
            f"there are {', '.join(named)}",
        )
    head = head or _last_dense_layer(module)
    in_head = {id(tensor) for name, tensor in every_name.items() if head and name.startswith(head)}
    specs = []
    for name, tensor in named.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        require(dtype in DTYPES, f"the model's tensor {name!r} has dtype {dtype}", f"use one of {', '.join(DTYPES)}")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), tensor.requires_grad, id(tensor) in in_head))
    require(
        any(spec.trainable for spec in specs),
        "the model has no trainable parameter",
        "return a torch.nn.Module with parameters",
    )
    return tuple(specs)


def _last_dense_layer(module: torch.nn.Module) -> tuple[str, ...]:
    names = [name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    if not names:
        return ()
    return (f"{names[-1]}.",) if names[-1] else ("weight", "bias")  # the module itself is the layer


def classifier(module: torch.nn.Module, head: tuple[str, ...] = ()) -> torch.nn.Linear | None:
    """The dense layer of the head that was registered last; None if the head has no dense layer.

    `head` is that of `tensor_specs`.
    """
    head = head or _last_dense_layer(module)
    layers = [
        layer
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear) and f"{name}.weight".removeprefix(".").startswith(head)
    ]
    return layers[-1] if layers else None


def bind(module: torch.nn.Module, weights: Weights) -> None:
    """Makes the module's tensors views of the buffer of `weights`: both then share their values."""
    for name, tensor in _tensors(module).items():
        tensor.data = torch.from_numpy(weights.arrays[name])


def unbind(module: torch.nn.Module) -> None:
    """Frees the memory of the module's tensors. They keep their shapes, and have no valid values until `bind`."""
    for tensor in _tensors(module).values():
        tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)


def unsaved(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers that state_dict() does not include, by name."""
    saved = module.state_dict()
    return {name: buffer.clone() for name, buffer in module.named_buffers() if name not in saved}


def reset(module: torch.nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    """Sets the module's buffers to these values, by name."""
    for name, buffer in module.named_buffers():
        if name in buffers:
            buffer.data = buffers[name].clone()


@contextlib.contextmanager
def bound(module: torch.nn.Module, weights: Weights) -> Iterator[None]:
    """Inside the context, the module's tensors are views of `weights`; afterwards they are what they were before.

    If the model replaces a tensor inside the context (`self.mean = ...`), its values are copied into `weights`.
    Raises ValueError if the new tensor has another shape.
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
            raise ValueError(f"the model changed the shape of its tensor {name!r} to {tuple(tensor.shape)}")
        if tensor.data_ptr() != home.data_ptr():
            home.copy_(tensor)


def weights_of(module: torch.nn.Module, head: tuple[str, ...] = ()) -> Weights:
    """A copy of the module's weights. `head` and errors are those of `tensor_specs`."""
    return Weights.of(
        {name: tensor.detach().numpy() for name, tensor in _tensors(module).items()}, tensor_specs(module, head)
    )


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the array's memory. A read-only array is copied, because torch tensors are writable."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
