"""The first check of a task's model: refuses tensors that cannot be sent."""

from __future__ import annotations

import itertools

import torch
from torch.nn.parameter import is_lazy

from fedgsp.errors import TaskError


def check_model(module: torch.nn.Module) -> None:
    """Raises TaskError if a layer has an extra state, or if a tensor cannot be sent.

    Every tensor must have a shape and be dense and on the CPU. Parameters must not share memory.
    """
    for path, layer in module.named_modules():
        described = f"the model's layer {path!r} ({type(layer).__name__})"
        if type(layer).get_extra_state is not torch.nn.Module.get_extra_state:
            raise TaskError(f"{described} has an extra state, which cannot be sent", "keep it in a buffer")
        own = itertools.chain(layer.named_parameters(recurse=False), layer.named_buffers(recurse=False))
        if any(is_lazy(tensor) for _, tensor in own):
            remedy = "run one batch through the model in model(), or give the layer its sizes"
            raise TaskError(f"{described} has no shape yet", remedy)
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        _check_tensor(name, tensor)
    # Sorted by address: if any two parameters overlap, two neighbours do.
    placed = sorted((*_place(parameter), name) for name, parameter in module.named_parameters() if parameter.numel())
    for (_, end, some), (begin, _, other) in itertools.pairwise(placed):
        if begin < end:
            raise TaskError(
                f"the model's parameters {some!r} and {other!r} share memory, but are not the same nn.Parameter",
                "share the parameter object (b.weight = a.weight), or copy the values with clone()",
            )


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        remedy = (
            "build the model without device='meta', or call model.to_empty(device='cpu') and initialise its weights"
        )
        raise TaskError(f"the model's tensor {name!r} is on device meta and has no values", remedy)
    if tensor.device.type != "cpu":
        remedy = "return the model on the CPU (model.cpu()): nodes train there"
        raise TaskError(f"the model's tensor {name!r} is on device {tensor.device}", remedy)
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.").lstrip("_")
        remedy = "store it as a dense tensor (to_dense(), or to_padded_tensor() for a nested one)"
        raise TaskError(f"the model's tensor {name!r} has the layout {layout}", remedy)


def _place(parameter: torch.Tensor) -> tuple[int, int]:
    """Address of the parameter's first byte, and of the byte after its last byte."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    begin = parameter.data_ptr()
    return begin, begin + elements * parameter.element_size()
