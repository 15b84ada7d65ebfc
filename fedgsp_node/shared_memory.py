"""Finds tensors and arrays of a model that share elements, although they are different objects."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.require import require
from fedgsp_node.devices import CPU

_PARAMETER, _BUFFER, _ATTRIBUTE = _KINDS = "parameter", "buffer", "attribute"
_REMEDIES = {
    _PARAMETER: "copy the values with clone(), or use the parameter itself, for example in forward()",
    _BUFFER: "copy the values with clone(), or take the part of the buffer in forward()",
}


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What a model holds in some memory."""

    kind: str
    name: str
    #: A tensor or an array.
    value: Any

    def may_share(self, other: "_Held") -> bool:
        """Attributes that a training changes are set back, with a warning. A buffer may be an attribute as well."""
        kinds = {self.kind, other.kind}
        return kinds == {_ATTRIBUTE} or (_ATTRIBUTE in kinds and self.value is other.value)

    def elements(self) -> NDArray[Any]:
        """The memory as an array of elements, which have no meaning: numpy does not know each dtype of torch."""
        if isinstance(self.value, np.ndarray):
            return self.value
        size = self.value.element_size()
        described = {
            "version": 3,
            "data": (self.value.data_ptr(), False),
            "shape": tuple(self.value.shape),
            "strides": tuple(stride * size for stride in self.value.stride()),
            "typestr": f"|V{size}",
        }
        return np.asarray(SimpleNamespace(__array_interface__=described))


def check_memory(module: nn.Module) -> None:
    """Raises TaskError if parameters, or buffers, share elements with each other, or attributes with any of them.

    Each of these tensors gets memory of its own, for each client, so one would not follow the other.
    """
    held = itertools.chain(
        (_Held(_PARAMETER, name, value) for name, value in module.named_parameters()),
        (_Held(_BUFFER, name, value) for name, value in module.named_buffers()),
        _attributes(module),
    )
    for one, other in _sharing(held):
        require(
            {one.kind, other.kind} != {_PARAMETER},
            f"the model's parameters {other.name!r} and {one.name!r} share memory, but are not the same nn.Parameter",
            "share the parameter object (b.weight = a.weight), or copy the values with clone()",
        )
        raise TaskError(
            f"the model's {one.kind} {one.name!r} shares memory with its {other.kind} {other.name!r}, and would not"
            " follow it",
            _REMEDIES[other.kind],
        )


def _attributes(module: nn.Module) -> Iterator[_Held]:
    """Arrays and dense tensors that are attributes of layers, except parameters.

    Layers that compute them anew before each call are left out (spectral_norm).
    """
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if (isinstance(value, np.ndarray) or _is_plain(value)) and not layer._forward_pre_hooks:
                yield _Held(_ATTRIBUTE, f"{path}.{name}" if path else name, value)


def _is_plain(value: Any) -> bool:
    plain = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
    return plain and value.layout == torch.strided and not value.is_nested and value.device == CPU


def _sharing(held: Iterable[_Held]) -> Iterator[tuple[_Held, _Held]]:
    """The pairs that share elements and must not; the first one is of the later kind, or begins later."""
    bounds = [(byte_bounds(elements), one) for one in held if (elements := one.elements()).size]
    open_ends: list[tuple[int, _Held]] = []
    for (begin, end), one in sorted(bounds, key=lambda found: (found[0][0], -found[0][1])):
        open_ends = [(last, other) for last, other in open_ends if last > begin]
        for _, other in open_ends:
            if not one.may_share(other) and np.shares_memory(one.elements(), other.elements()):
                first, second = sorted((other, one), key=lambda found: _KINDS.index(found.kind))
                yield second, first
        open_ends.append((end, one))
