"""Finds tensors of a model that share elements, although they are different objects."""

import itertools
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.require import require
from fedgsp_node.devices import CPU

_PARAMETER, _BUFFER, _ATTRIBUTE = "parameter", "buffer", "attribute"
#: Kind and name of a tensor, and the tensor.
_Named = tuple[str, str, torch.Tensor]
_REMEDIES = {
    _PARAMETER: "copy the values with clone(), or use the parameter itself, for example in forward()",
    _BUFFER: "copy the values with clone(), or take the part of the buffer in forward()",
}


def check_memory(module: nn.Module) -> None:
    """Raises TaskError if parameters, or buffers, share elements with each other, or attributes with any of them.

    Each of these tensors gets memory of its own, for each client, so one would not follow the other.
    """
    named = itertools.chain(
        ((_PARAMETER, name, tensor) for name, tensor in module.named_parameters()),
        ((_BUFFER, name, tensor) for name, tensor in module.named_buffers()),
        ((_ATTRIBUTE, name, tensor) for name, tensor in _attributes(module)),
    )
    for (kind, name, _), (other_kind, other, _) in _sharing(named):
        require(
            {kind, other_kind} != {_PARAMETER},
            f"the model's parameters {other!r} and {name!r} share memory, but are not the same nn.Parameter",
            "share the parameter object (b.weight = a.weight), or copy the values with clone()",
        )
        raise TaskError(
            f"the model's {kind} {name!r} shares memory with its {other_kind} {other!r}, and would not follow it",
            _REMEDIES[other_kind],
        )


def _attributes(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Dense tensors that are attributes of layers, by name, except parameters.

    Layers that compute them anew before each call are left out (spectral_norm).
    """
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            plain = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
            dense = plain and value.layout == torch.strided and not value.is_nested
            if dense and value.device == CPU and not layer._forward_pre_hooks:
                yield f"{path}.{name}" if path else name, value


def _sharing(named: Iterable[_Named]) -> Iterator[tuple[_Named, _Named]]:
    """The pairs of tensors that share elements and must not; the first one is of the later kind, or begins later."""
    order = (_PARAMETER, _BUFFER, _ATTRIBUTE)
    placed = sorted(
        ((*_place(one[2]), number, one) for number, one in enumerate(named) if one[2].numel()),
        key=lambda found: (found[0], -found[1], found[2]),
    )
    open_ends: list[tuple[int, _Named]] = []
    for begin, end, _, one in placed:
        open_ends = [(last, other) for last, other in open_ends if last > begin]
        for _, other in open_ends:
            if not _may_share(one, other) and np.shares_memory(_elements(one[2]), _elements(other[2])):
                first, second = sorted((other, one), key=lambda found: order.index(found[0]))
                yield second, first
        open_ends.append((end, one))


def _may_share(one: _Named, other: _Named) -> bool:
    """Attributes that a training changes are set back, with a warning. A buffer may be an attribute as well."""
    kinds = {one[0], other[0]}
    return kinds == {_ATTRIBUTE} or (_ATTRIBUTE in kinds and one[2] is other[2])


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the tensor's first byte, and of the byte after its last byte."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + elements * tensor.element_size()


def _elements(tensor: torch.Tensor) -> NDArray[Any]:
    """The memory of a tensor of any dtype as an array of elements without a meaning."""
    size = tensor.element_size()
    described = {
        "version": 3,
        "data": (tensor.data_ptr(), False),
        "shape": tuple(tensor.shape),
        "strides": tuple(stride * size for stride in tensor.stride()),
        "typestr": f"|V{size}",
    }
    return np.asarray(SimpleNamespace(__array_interface__=described))
