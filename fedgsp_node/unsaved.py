"""What a model holds beside its state: each client finds it as the task's model() made it."""

import logging
from collections.abc import Iterator
from typing import Any

import torch

from fedgsp.errors import TaskError

logger = logging.getLogger(__name__)

#: Values that nobody can change in place.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Attributes that torch gives each layer, and sets itself.
_OF_TORCH = frozenset(vars(torch.nn.Module()))


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Each buffer, with and without a value: its full name, its layer, and its name there."""
    for path, layer in module.named_modules():
        for name in layer._buffers:
            yield f"{path}.{name}" if path else name, layer, name


class Unsaved:
    """The buffers that state_dict() does not include, and the attributes of layers that are plain values."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        saved = module.state_dict()
        self._saved = frozenset(saved)
        found = {full: layer._buffers[name] for full, layer, name in _buffers(module) if full not in saved}
        #: Copies, by name; None for a buffer without a value.
        self.buffers = {name: None if buffer is None else buffer.clone() for name, buffer in found.items()}
        # A counter of steps, or a hidden state that begins as None: the next client would go on from there.
        self._attributes: list[tuple[dict[str, Any], str, Any, str]] = [
            (vars(layer), name, value, path)
            for path, layer in module.named_modules()
            for name, value in vars(layer).items()
            if type(value) in _PLAIN and name not in _OF_TORCH
        ]
        self._told = False

    def to(self, device: torch.device) -> None:
        """Moves the copies to the device of the module."""
        for name, buffer in self.buffers.items():
            self.buffers[name] = buffer.to(device) if buffer is not None else None

    def reset(self) -> None:
        """Gives the module the first values again, and no gradients: an evaluation may have left some.

        Raises TaskError if an earlier client has left further layers in it.
        """
        self._module.zero_grad()
        for full, layer, name in _buffers(self._module):
            if full in self.buffers:
                value, buffer = self.buffers[full], layer._buffers[name]
                if value is None or buffer is None:
                    layer._buffers[name] = None if value is None else value.clone()
                else:
                    buffer.data = value.clone()
        for name in sorted(self._module.state_dict().keys() - self._saved):
            raise TaskError(
                f"the model has a tensor {name!r} that it did not have at first", "make all of its layers in model()"
            )
        for attributes, name, value, path in self._attributes:
            now = attributes.get(name)
            attributes[name] = value
            # From None, attributes become what layers keep for speed.
            if not self._told and value is not None and type(now) in _PLAIN and now != value:
                self._told = True
                logger.warning(
                    "the model changed the attribute %r of its layer %r from %r to %r; each client finds the first"
                    " value again: what training is to change has to be a parameter or a persistent buffer",
                    name,
                    path,
                    value,
                    now,
                )
