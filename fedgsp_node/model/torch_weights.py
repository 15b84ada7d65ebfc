"""Makes the tensors of a torch module views of a `Weights` buffer, so that training writes into the bytes to send."""

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from blake3 import blake3

from fedgsp.messages import TensorSpec
from fedgsp.require import require
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.weights import Weights
from fedgsp_node.model.arrays import array_of, tensor_of
from fedgsp_node.model.form import form_kept
from fedgsp_node.model.named_state import every_name, state_of


def _with_prefix(module: torch.nn.Module, prefixes: tuple[str, ...]) -> set[int]:
    """The `id()` of each tensor one of whose names begins with a prefix."""
    return {id(tensor) for name, tensor in every_name(module).items() if prefixes and name.startswith(prefixes)}


def _check_prefixes(module: torch.nn.Module, prefixes: tuple[str, ...], what: str) -> None:
    names = every_name(module) if prefixes else {}
    unknown = next((prefix for prefix in prefixes if not any(name.startswith(prefix) for name in names)), None)
    require(
        unknown is None,
        f"no tensor's name begins with the task's {what} {unknown!r}",
        f"there are {', '.join(state_of(module))}",
    )


def constants(module: torch.nn.Module, named: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """The tensors of a module that do not travel: parameters that are not trained, and those `named` by prefixes.

    Raises TaskError for a prefix that names no tensor, or a parameter that is trained.
    """
    _check_prefixes(module, named, "constant")
    chosen, found = _with_prefix(module, named), {}
    for name, tensor in state_of(module).items():
        require(
            not (id(tensor) in chosen and tensor.requires_grad),
            f"the task names the tensor {name!r} as constant, and training changes it",
            "give it requires_grad_(False) in model(), or correct `constant`",
        )
        if id(tensor) in chosen or (isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad):
            found[name] = tensor
    return found


def _travelling(module: torch.nn.Module, constant: tuple[str, ...]) -> dict[str, torch.Tensor]:
    stay = constants(module, constant)
    return {name: tensor for name, tensor in state_of(module).items() if name not in stay}


def tensor_specs(
    module: torch.nn.Module, head: tuple[str, ...] = (), constant: tuple[str, ...] = ()
) -> tuple[TensorSpec, ...]:
    """Name, dtype and shape of each tensor that travels, and whether it is trainable and part of the head.

    The classifier head has the tensors whose names begin with an entry of `head`; by default, it is the dense layer
    that was registered last. Raises TaskError for a dtype that cannot be sent, for a wrong `head` or `constant`, and
    for a module without trainable parameters.
    """
    _check_prefixes(module, head, "head")
    in_head = _with_prefix(module, head or _last_dense_layer(module))
    specs = []
    for name, tensor in _travelling(module, constant).items():
        dtype = dtype_name(tensor)
        require(dtype in DTYPES, f"the model's tensor {name!r} has dtype {dtype}", f"use one of {', '.join(DTYPES)}")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), tensor.requires_grad, id(tensor) in in_head))
    require(
        any(spec.trainable for spec in specs),
        "the model has no trainable parameter",
        "return a torch.nn.Module with parameters, and leave some of them trainable (requires_grad)",
    )
    return tuple(specs)


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")


def digest(tensor: torch.Tensor) -> bytes:
    """BLAKE3 (256 bits) of the dtype, the shape and the values of a tensor."""
    hasher = blake3(f"{dtype_name(tensor)}{list(tensor.shape)}".encode())
    values = tensor.detach().cpu().contiguous().reshape(-1)
    return hasher.update(values.view(torch.uint8).numpy().data if values.numel() else b"").digest()


def _last_dense_layer(module: torch.nn.Module) -> tuple[str, ...]:
    names = [name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    if not names:
        return ()
    return (f"{names[-1]}.",) if names[-1] else ("weight", "bias")  # the module itself is the layer


def classifier(module: torch.nn.Module, head: tuple[str, ...] = ()) -> torch.nn.Linear | None:
    """The dense layer of the head that was registered last; None if the head has no dense layer.

    `head` is that of `tensor_specs`.
    """
    in_head = _with_prefix(module, head or _last_dense_layer(module))
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, torch.nn.Linear) and any(id(one) in in_head for one in layer.parameters())
    ]
    return layers[-1] if layers else None


def values_of(
    module: torch.nn.Module, tensors: tuple[TensorSpec, ...], device: torch.device
) -> dict[str, torch.Tensor]:
    """The values of those of these tensors that the module has, by name, on a device."""
    named = {spec.name for spec in tensors}
    return {name: tensor.detach().to(device) for name, tensor in state_of(module).items() if name in named}


def placed(module: torch.nn.Module, weights: Weights) -> dict[str, torch.Tensor]:
    """The weights on the device of the module, by name; on the CPU they are views of the buffer of `weights`."""
    return {
        name: tensor_of(weights.arrays[name]).to(tensor.device)
        for name, tensor in state_of(module).items()
        if name in weights.arrays
    }


def bind(module: torch.nn.Module, weights: Weights) -> None:
    """Gives the tensors of a module the values that `weights` has; on the CPU both then share their memory."""
    tensors = state_of(module)
    for name, values in placed(module, weights).items():
        tensors[name].data = values


def unbind(module: torch.nn.Module, constant: tuple[str, ...] = ()) -> None:
    """Frees the memory of the tensors that travel. They keep their shapes, and have no valid values until `bind`."""
    for tensor in _travelling(module, constant).values():
        tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)


@contextlib.contextmanager
def swapped(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Inside the context, tensors of the module are those of `values`; afterwards they are what they were before."""
    found = {name: tensor for name, tensor in state_of(module).items() if name in values}
    before = {name: tensor.data for name, tensor in found.items()}
    for name, tensor in found.items():
        tensor.data = values[name]
    try:
        yield
    finally:
        for name, tensor in state_of(module).items():
            if name in before:
                tensor.data = before[name]


@contextlib.contextmanager
def bound(module: torch.nn.Module, weights: Weights) -> Iterator[None]:
    """Inside the context, the module has the tensors of `weights`; at its end, `weights` has their values.

    Afterwards the tensors are what they were before. On the CPU, they share the memory of `weights` in the context. If
    the model replaces a tensor inside the context (`self.mean = ...`), its values are copied into `weights`. Raises
    TaskError if the state of the model has another form at the end, see `form_kept`.
    """
    with swapped(module, placed(module, weights)):
        _flatten(module)
        with form_kept(module):
            yield
        after = {name: tensor.detach() for name, tensor in state_of(module).items() if name in weights.arrays}
    for name, tensor in after.items():
        home = tensor_of(weights.arrays[name])
        if tensor.data_ptr() != home.data_ptr():
            home.copy_(tensor)


def _flatten(module: torch.nn.Module) -> None:
    """Puts the tensors of each recurrent layer on a GPU side by side; CUDA would otherwise do so in each step.

    Layers with tensors that are not trained are left out: these stay on the device from one client to the next.
    """
    for layer in module.modules():
        if isinstance(layer, torch.nn.RNNBase) and all(one.requires_grad for one in layer.parameters()):
            layer.flatten_parameters()


def weights_of(module: torch.nn.Module, head: tuple[str, ...] = (), constant: tuple[str, ...] = ()) -> Weights:
    """A copy of the module's tensors that travel. Arguments and errors are those of `tensor_specs`."""
    specs = tensor_specs(module, head, constant)
    tensors = state_of(module)
    return Weights.of({spec.name: array_of(tensors[spec.name]) for spec in specs}, specs)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the array's memory. A read-only array is copied, because torch tensors are writable."""
    return tensor_of(array if array.flags.writeable else array.copy())
