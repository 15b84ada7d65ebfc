"""What a task's model may not be made of, since its weights could not travel."""

from __future__ import annotations

import itertools

import torch
from torch.nn.parameter import is_lazy

from fedgsp.errors import TaskError


def check_model(module: torch.nn.Module) -> None:
    """Raises TaskError for tensors without a shape yet, parameters that share memory, and state that is no tensor."""
    for path, layer in module.named_modules():
        if type(layer).get_extra_state is not torch.nn.Module.get_extra_state:
            described = (
                f"the model's layer {path!r} ({type(layer).__name__}) has an extra state, which does not travel"
            )
            raise TaskError(described, "keep it in a buffer")
        own = itertools.chain(layer.named_parameters(recurse=False), layer.named_buffers(recurse=False))
        if any(is_lazy(tensor) for _, tensor in own):
            described = f"the model's layer {path!r} ({type(layer).__name__}) has no shape yet"
            raise TaskError(described, "run one batch through the model in model(), or give the sizes")
    # In the order of their places in memory, only neighbours can be the first to overlap.
    placed = sorted((*_place(parameter), name) for name, parameter in module.named_parameters() if parameter.numel())
    for (_, end, some), (begin, _, other) in itertools.pairwise(placed):
        if begin < end:
            raise TaskError(
                f"the model's parameters {some!r} and {other!r} share memory, but are not one nn.Parameter",
                "tie layers by the parameter itself (b.weight = a.weight), or copy it with clone()",
            )


def _place(parameter: torch.Tensor) -> tuple[int, int]:
    """Its first byte in memory, and the one after its last."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    begin = parameter.data_ptr()
    return begin, begin + elements * parameter.element_size()
