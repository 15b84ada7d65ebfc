"""The tensors of a node's model that do not travel, because training does not change them."""

import dataclasses

import torch

from fedgsp.messages import Constant, TensorSpec
from fedgsp_node.model.torch_weights import constants, digest, dtype_name

#: What to tell of a constant that has changed, by its name.
CHANGED = (
    "the model changed its tensor {!r}, which does not travel",
    "leave it its requires_grad, and compute with it under torch.no_grad(), or register it as a buffer that `constant`"
    " does not name; if a layer such as batch norm changes it, put that layer into evaluation mode (in the model's"
    " train())",
)


class Constants:
    """The constants of a module, which all clients of the node share."""

    def __init__(self, module: torch.nn.Module, named: tuple[str, ...]) -> None:
        """`named` are the prefixes by which the task names constants. Raises TaskError, see `constants`."""
        self._named = named
        self._tensors = constants(module, named)
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}
        #: Of the values, once they have been made for a run.
        self._digests: dict[str, bytes] = {}
        self._compared = False

    @property
    def specs(self) -> tuple[Constant, ...]:
        """All of them, without digests."""
        return tuple(
            Constant(TensorSpec(name, dtype_name(tensor), tuple(tensor.shape), trainable=False))
            for name, tensor in self._tensors.items()
        )

    @property
    def made(self) -> tuple[Constant, ...]:
        """All of them, with the digests of the values that `take_from` took last."""
        return tuple(
            dataclasses.replace(one, digest=digest)
            for one, digest in zip(self.specs, self._digests.values(), strict=True)
        )

    def take_from(self, module: torch.nn.Module) -> tuple[Constant, ...]:
        """Takes the values of another module of the task, on the CPU; returns the constants with their digests."""
        for name, tensor in constants(module, self._named).items():
            self._tensors[name].data.copy_(tensor.detach())
            self._digests[name] = digest(tensor)
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}
        self._compared = False
        return self.made

    def changed(self, after_training: bool) -> str | None:
        """The name of a constant that has changed; None if none has.

        The first time after a training, values are compared. Otherwise torch's counters of changes are, which do not
        see changes by way of `.data`.
        """
        for name, tensor in self._tensors.items():
            if tensor._version != self._versions[name]:
                return name
        if after_training and not self._compared:
            self._compared = True
            for name, found in self._digests.items():
                if digest(self._tensors[name]) != found:
                    return name
        return None
