"""What a model holds beside its state: each client finds it as the task's model() made it."""

from collections.abc import Iterator

import torch

from fedgsp.errors import TaskError
from fedgsp_node.model.first_values import FirstValues
from fedgsp_node.model.named_state import state_of


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Each buffer, with and without a value: its full name, its layer, and its name there."""
    for path, layer in module.named_modules():
        for name in layer._buffers:
            yield f"{path}.{name}" if path else name, layer, name


class Unsaved:
    """Buffers that are not of the state or have no value, attributes of layers, and which parameters are trained."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        state = state_of(module)
        self._saved, saved = frozenset(state), {id(tensor) for tensor in state.values()}
        found = {full: layer._buffers[name] for full, layer, name in _buffers(module)}
        #: Copies, by name; None for a buffer without a value.
        self.buffers = {
            name: None if buffer is None else buffer.clone()
            for name, buffer in found.items()
            if id(buffer) not in saved
        }
        self._attributes = FirstValues(module)
        # A model may freeze parts of itself after some steps.
        self._trained = [(name, one, one.requires_grad) for name, one in module.named_parameters()]

    def to(self, device: torch.device) -> None:
        """Moves the copies to the device of the module."""
        for name, buffer in self.buffers.items():
            self.buffers[name] = buffer.to(device) if buffer is not None else None

    def reset(self) -> None:
        """Gives the module the first values again, and no gradients: an evaluation may have left some.

        Raises TaskError if an earlier client has left further layers in it, or has removed a tensor.
        """
        self._module.zero_grad()
        for full, layer, name in _buffers(self._module):
            if full in self.buffers:
                value, buffer = self.buffers[full], layer._buffers[name]
                if value is None or buffer is None:
                    layer._buffers[name] = None if value is None else value.clone()
                else:
                    buffer.data = value.clone()
        now = state_of(self._module).keys()
        for name in sorted(now - self._saved):
            raise TaskError(
                f"the model has a tensor {name!r} that it did not have at first", "make all of its layers in model()"
            )
        for name in sorted(self._saved - now):
            raise TaskError(f"the model has lost its tensor {name!r}", "let it keep the tensor")
        for _, parameter, trained in self._trained:
            parameter.requires_grad_(trained)
        self._attributes.reset()

    def check_trained(self) -> None:
        """Raises ValueError if the model trains a parameter that model() returned frozen, so that it stays here."""
        for name, parameter, trained in self._trained:
            if parameter.requires_grad and not trained:
                raise ValueError(
                    f"the model began to train its tensor {name!r}, which model() returned with requires_grad=False:"
                    " return it trainable, and freeze it in forward() as long as it is not to be trained"
                )
