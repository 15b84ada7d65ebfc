"""The user's surface: a task is a model, the data of each client, and a loss."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsp.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Split:
    """Samples of one client: `x` of shape (n, ...) as the model takes it, `y` of shape (n,)."""

    x: NDArray[np.generic]
    y: NDArray[np.generic]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} labels")

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class ClientData:
    """What one client holds: a part to train on and a part to test on."""

    train: Split
    test: Split


class Task(abc.ABC):
    """What clients learn. Subclass it, or return one from a factory named by `--task module:factory`."""

    #: Number of classes; class histograms have this length.
    num_classes: int
    #: How many clients the data hold, an int; client ids are 0 .. num_clients - 1. It may be a property too: mypy lets
    #: one override Any, but not an int.
    num_clients: Any
    #: Beginnings of the names of the classifier head's tensors, as ("fc2.",); empty: the dense layer registered last.
    head: tuple[str, ...] = ()
    #: Whether data(client) is quick and gives the same each time, so that a node need not keep what it gave.
    data_is_repeatable: bool = False
    #: Whether an epoch leaves out its last batch where that is short, unless it is the only one.
    drop_last: bool = False

    #: Names of options that may differ between the nodes of a run; paths always may.
    local_options: tuple[str, ...] = ()

    @abc.abstractmethod
    def model(self) -> torch.nn.Module:
        """A freshly initialised model; the caller seeds torch first."""

    @abc.abstractmethod
    def data(self, client: int) -> ClientData:
        """The data of one client; called once per hosted client, unless `data_is_repeatable`."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss over a batch; cross-entropy unless overridden."""
        import torch

        return torch.nn.functional.cross_entropy(outputs, targets)

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int:
        """How many samples of a batch count as right; arg max unless overridden."""
        found = outputs.argmax(dim=1)
        if targets.ndim != 1 or found.shape != targets.shape:
            raise TaskError(
                f"the default correct() finds no class per sample in outputs of shape {tuple(outputs.shape)}"
                f" for y of shape {tuple(targets.shape)}",
                "override correct() to count the samples that are right",
            )
        return int((found == targets).sum())

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, float]:
        """Further figures over all of a client's test part, by name; none unless overridden."""
        return {}

    def class_counts(self, train: Split) -> NDArray[np.int64]:
        """Class histogram of a training part, shape (num_classes,): raw counts."""
        y = train.y
        if y.ndim != 1 or not np.isin(y, np.arange(self.num_classes)).all():
            raise TaskError(
                f"y of shape {y.shape} and dtype {y.dtype} are no classes 0 .. {self.num_classes - 1}",
                "override class_counts()",
            )
        return np.bincount(y.astype(np.int64), minlength=self.num_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What client discriminators see of inputs (n, ...): shape (n, d); raw and flat unless a frozen encoder's."""
        return x.flatten(1).float()
