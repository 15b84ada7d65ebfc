"""Finds tensors and arrays of a model that share elements, although they are different objects."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
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
from fedgsp_node.model.arrays import same_values

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

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

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
    """Raises TaskError if a parameter shares elements with another parameter, a buffer, or an attribute.

    Each parameter gets memory of its own, for each client, so the others would not follow it.
    """
    for one, other in _sharing(_held(module), lambda held: held.kind == _PARAMETER):
        require(
            {one.kind, other.kind} != {_PARAMETER},
            f"the model's parameters {other.name!r} and {one.name!r} share memory, but are not the same nn.Parameter",
            "share the parameter object (b.weight = a.weight), or copy the values with clone()",
        )
        raise _not_following(one, other)


@contextlib.contextmanager
def shared_memory_kept(module: nn.Module, made: nn.Module) -> Iterator[None]:
    """A context in which no buffer or attribute of a module may change that shares elements with others in `made`.

    `made` is as model() returns it. In `module`, each of them may have memory of its own, so others would not follow a
    change; constants that share memory, such as masks, need not. Raises TaskError.
    """
    near = {one.key for cluster in _clusters(_held(made)) if len(cluster) > 1 for one in cluster}
    before = [(one, _copy(one.value)) for one in _held(module) if one.key in near and one.kind != _PARAMETER]
    yield
    changed = {one.key for one, first in before if not _same(one.value, first)}
    for one, other in _sharing(_held(made), lambda held: held.key in changed):
        raise _not_following(one, other)


def _not_following(one: _Held, other: _Held) -> TaskError:
    return TaskError(
        f"the model's {one.kind} {one.name!r} shares memory with its {other.kind} {other.name!r}, and would not"
        " follow it",
        _REMEDIES[other.kind],
    )


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.detach().clone()


def _same(value: Any, first: Any) -> bool:
    return bool(value.tobytes() == first.tobytes()) if isinstance(value, np.ndarray) else same_values(value, first)


def _held(module: nn.Module) -> Iterator[_Held]:
    yield from (_Held(_PARAMETER, name, value) for name, value in module.named_parameters())
    yield from (_Held(_BUFFER, name, value) for name, value in module.named_buffers())
    yield from _attributes(module)


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


def _clusters(held: Iterable[_Held]) -> Iterator[list[_Held]]:
    """What may share elements: the addresses of each one lie between those of the others, or overlap them."""
    bounds = [(byte_bounds(elements), one) for one in held if (elements := one.elements()).size]
    cluster: list[_Held] = []
    last = 0
    for (begin, end), one in sorted(bounds, key=lambda found: (found[0][0], -found[0][1])):
        if begin >= last and cluster:
            yield cluster
            cluster = []
        cluster.append(one)
        last = max(last, end)
    yield cluster


def _sharing(held: Iterable[_Held], matters: Callable[[_Held], bool]) -> Iterator[tuple[_Held, _Held]]:
    """The pairs that share elements and must not, if one of them matters; the first one is of the later kind."""
    for cluster in _clusters(held):
        # Not all pairs: a model may have thousands of constants in one piece of memory.
        for one, other in itertools.product(filter(matters, cluster), cluster):
            if one is not other and not one.may_share(other) and np.shares_memory(one.elements(), other.elements()):
                first, second = sorted(
                    (one, other), key=lambda found: (_KINDS.index(found.kind), cluster.index(found))
                )
                yield second, first
