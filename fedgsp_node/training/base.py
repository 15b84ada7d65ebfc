"""The input and the result of a local training algorithm, and the description of an algorithm."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from fedgsp.messages import TensorSpec, TrainingSettings
from fedgsp.task import Task
from fedgsp.tensors.weights import Weights
from fedgsp_node.devices import CPU
from fedgsp_node.kept.optimizer_state import States
from fedgsp_node.optimizers import Stepping
from fedgsp_node.samples import Samples
from fedgsp_node.training.control import Control


class NoLoss(NamedTuple):
    """The first batch of a training whose loss is infinite or no number."""

    #: Its number, from 1.
    batch: int
    loss: float
    #: The loss of the batch before; None for the first batch.
    before: float | None


@dataclass(slots=True)
class LocalWork:
    """One client's local work. Training changes the module in place.

    On the CPU, its tensors are views of a `Weights` buffer; those of other devices are copied there afterwards.
    """

    module: torch.nn.Module
    task: Task
    #: Training samples.
    samples: Samples
    settings: TrainingSettings
    #: The options of the training, as its declaration describes them.
    options: Any
    #: Draws the order of the samples in each epoch.
    rng: np.random.Generator
    control: Control
    #: The model that the client received. It must not be changed.
    received: Weights
    #: If the algorithm keeps a personal model: the client's last one, at first a copy of `received`; changed in place.
    personal: Weights | None = None
    #: What `Algorithm.extend` returned when the model was made; None if the algorithm adds nothing to it.
    added: Any = None
    #: How the order says that steps are taken.
    stepping: Stepping = field(default_factory=Stepping)
    #: Where the state of the optimisers comes from, and goes; None: every optimiser begins anew.
    states: States | None = None
    #: Where the module is, and where batches go.
    device: torch.device = CPU
    #: For random numbers of the task's transform().
    generator: torch.Generator = field(default_factory=torch.Generator)
    #: If the training declares `keeps_tensors`: what the client's last training has left here, by name and on the CPU;
    #: empty in its first one. What is here at the end is kept, with its dtypes and bits. A training that is repeated
    #: after a failure finds what its first try has found.
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    #: Noted as steps are taken; None if all losses are numbers.
    no_loss: NoLoss | None = None


class Batch(NamedTuple):
    """Some samples of a client, as the model and the loss take them."""

    x: Any
    y: Any
    #: The numbers of the samples, int64 of shape (n,).
    rows: torch.Tensor

    @property
    def samples(self) -> int:
        """How many samples it has. `x` and `y` may not tell: those of a data set look as the task collates them."""
        return len(self.rows)


class Result(NamedTuple):
    """The mean loss over all samples seen, and the normalised number of local steps tau_k (FedNova, section 6)."""

    loss: float
    steps: float


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a client trains, and which model is evaluated for it.

    A node calls it for one client at a time. From one training to the next, only `LocalWork.kept` and `personal` may
    be remembered. A variable of a module or an object would mix the clients that happen to be on one node, and would
    be lost when the node restarts: the result would depend on where the clients are.
    """

    #: Trains `work.module` in place. StoppedError if the work was cancelled.
    train: Callable[[LocalWork], Result]
    #: Whether training never reads `received`. Then the received buffer itself may be trained, without a copy.
    in_place: bool = False
    #: Trains the model further, in place, before it is evaluated for this client; None if no such step is needed.
    adapt: Callable[[LocalWork], None] | None = None
    #: Adds to a model of the task what `fedgsp.trainings.Training.adds` declares, given the features, the options and
    #: the tensors of the model that travel. Initial values may be drawn from torch's generator. None: the training
    #: adds nothing.
    extend: Callable[[torch.nn.Module, TensorSpec, Any, tuple[TensorSpec, ...]], Any] | None = None
