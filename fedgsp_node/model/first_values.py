"""Plain attributes of a model's layers: each client finds the values that model() gave them."""

import copy
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedgsp_node.model.arrays import same_values

logger = logging.getLogger(__name__)

#: Values that nobody can change in place; so are the numbers of numpy.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Values in which others are collected.
_COLLECTIONS = (list, dict, OrderedDict, defaultdict, set, deque)
#: Attributes that torch gives each layer, and sets itself.
_OF_TORCH = frozenset(vars(torch.nn.Module()))


@dataclass(frozen=True, slots=True)
class _Attribute:
    """An attribute of a layer, and what it was at first."""

    #: All attributes of the layer.
    attributes: dict[str, Any]
    name: str
    #: Of the layer.
    path: str
    #: The object, which may change in place, and a copy of what it was.
    value: Any
    first: Any

    def reset(self) -> str | None:
        """Makes the attribute what it was at first; returns how it had changed, in words, if it had."""
        now = self.attributes.get(self.name)
        differs = not _are_alike(now, self.first)
        if not differs and (now is self.value or _is_plain(now)):
            return None
        shown = f" from {self.first!r} to {now!r}" if _is_plain(self.first) and _is_plain(now) else ""
        self.attributes[self.name] = self._as_at_first()
        return shown if differs else None

    def _as_at_first(self) -> Any:
        """The object with its first values, since other layers may have it too; a copy if it cannot be filled anew."""
        if isinstance(self.value, torch.Tensor):
            self.value.data = self.first.clone()
        elif isinstance(self.value, np.ndarray) and self.value.flags.writeable and _is_formed(self.value, self.first):
            self.value[...] = self.first
        elif type(self.value) in _COLLECTIONS:
            values = copy.deepcopy(self.first)
            self.value.clear()
            (self.value.extend if isinstance(self.value, list | deque) else self.value.update)(values)
        elif isinstance(self.value, tuple | np.ndarray):
            return copy.deepcopy(self.first)
        return self.value

    @property
    def begins_empty(self) -> bool:
        """Whether it is None or an empty collection at first: then it often becomes what a layer keeps for speed."""
        return self.first is None or (type(self.first) in _COLLECTIONS and not self.first)


class FirstValues:
    """The attributes of layers that are plain values, tensors, arrays, or collections of such."""

    def __init__(self, module: torch.nn.Module) -> None:
        # Such as a counter of steps, a running mean that is no buffer, or a queue of features. Without a reset, the
        # next client would begin with what this one has left.
        self._attributes = list(_attributes(module))
        self._told = False

    def reset(self) -> None:
        """Gives the layers the first values again. The first time that one has changed, a warning says so."""
        for one in self._attributes:
            change = one.reset()
            if change is not None and not self._told and not one.begins_empty:
                self._told = True
                logger.warning(
                    "the model changed the attribute %r of its layer %r%s; each client finds the first value again:"
                    " what training is to change has to be a parameter or a persistent buffer",
                    one.name,
                    one.path,
                    change,
                )


def _attributes(module: torch.nn.Module) -> Iterator[_Attribute]:
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            # Before each call, such a hook may make a weight from others, as the one of spectral_norm does.
            made_anew = isinstance(value, torch.Tensor) and layer._forward_pre_hooks
            if name not in _OF_TORCH and not made_anew and _can_be_kept(value):
                yield _Attribute(vars(layer), name, path, value, copy.deepcopy(value))


def _can_be_kept(value: Any) -> bool:
    """Whether a value is plain, a dense tensor without a gradient, an array, or collects only such values."""
    if isinstance(value, torch.Tensor):
        dense = value.layout == torch.strided and not (value.is_nested or value.is_meta)
        return dense and type(value) is torch.Tensor and value.is_leaf and not value.requires_grad
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and not value.dtype.hasobject
    if isinstance(value, Mapping):
        return type(value) in _COLLECTIONS and all(map(_can_be_kept, value.values()))
    if type(value) in (tuple, *_COLLECTIONS):
        return all(map(_can_be_kept, value))
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether nobody can change a value in place."""
    return type(value) in _PLAIN or (isinstance(value, np.generic) and not isinstance(value, np.void))


def _is_formed(value: np.ndarray | np.generic, first: np.ndarray | np.generic) -> bool:
    """Whether an array has the shape and the dtype of another one."""
    return (value.shape, value.dtype) == (first.shape, first.dtype)


def _are_equal(value: Any, first: Any) -> bool:
    """Whether Python finds two collections equal, which is fast, as for a vocabulary; False if it cannot say."""
    try:
        return bool(value == first)
    except (RuntimeError, ValueError):  # torch and numpy, of tensors and arrays in them
        return False


def _are_alike(value: Any, first: Any) -> bool:
    if type(value) is not type(first):
        return False
    if isinstance(first, torch.Tensor):
        known = value.layout == torch.strided and value.device == first.device and value.dtype == first.dtype
        return known and same_values(value, first)
    if isinstance(first, np.ndarray | np.generic):  # the bytes: NaN is the same as NaN
        return _is_formed(value, first) and value.tobytes() == first.tobytes()
    if isinstance(first, Collection) and _are_equal(value, first):
        return True
    if isinstance(first, Mapping):
        return value.keys() == first.keys() and all(_are_alike(value[key], first[key]) for key in first)
    if isinstance(first, list | tuple | deque):
        return len(value) == len(first) and all(map(_are_alike, value, first))
    return value is first or bool(value == first)
