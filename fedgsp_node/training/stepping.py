"""Steps of one client's local training: what they all have in common."""

import abc
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fedgsp.tensors.weights import Weights
from fedgsp_node.devices import CPU
from fedgsp_node.model.arrays import tensor_of
from fedgsp_node.model.named_state import state_of
from fedgsp_node.training.base import Batch, LocalWork, NoLoss

#: Losses that stay on a GPU before they are summed up. A training that hangs there is noticed that much later.
MOST_LOSSES = 64


class Steps(abc.ABC):
    """Takes steps with the module of `work`. After each batch it calls `tick`, which may raise StoppedError."""

    def __init__(self, work: LocalWork) -> None:
        self._work = work
        trained = {
            name: tensor
            for name, tensor in state_of(work.module).items()
            if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
        }
        self._names = list(trained)
        self._loss_sum, self._seen = 0.0, 0
        #: Number of losses in the sum, and the last one.
        self._counted = 0
        self._last: float | None = None
        #: The last losses, as far as they are not in the sum, with their numbers of samples.
        self._losses: list[tuple[torch.Tensor, int]] = []
        #: The trainable parameters.
        self.parameters = list(trained.values())
        #: The memory in which the values of each parameter must be after a step.
        self._homes = [parameter.data for parameter in self.parameters]
        #: FedNova's ||a||_1 (section 6): the sum of the shares with which each step's gradient is in the result, in
        #: units of the learning rate. For plain SGD it is the number of steps.
        self.norm = 0.0

    @property
    def loss(self) -> float:
        """Mean loss over all samples seen, computed where their gradients were taken."""
        self._sum_up()
        return self._loss_sum / self._seen

    def trained(self, weights: Weights) -> list[torch.Tensor]:
        """The tensors in `weights` that correspond to `parameters`, on the device; views of them on the CPU."""
        return [tensor_of(weights.arrays[name]).to(self._work.device) for name in self._names]

    def store(self, tensors: Sequence[torch.Tensor], weights: Weights) -> None:
        """Copies tensors that correspond to `parameters` into `weights`, unless they are views of it."""
        for name, tensor in zip(self._names, tensors, strict=True):
            home = tensor_of(weights.arrays[name])
            if home.data_ptr() != tensor.data_ptr():
                home.copy_(tensor)

    @abc.abstractmethod
    def step(
        self,
        batch: Batch,
        rate: float,
        anchors: Sequence[torch.Tensor] = (),
        strength: float = 0.0,
        onto: Sequence[torch.Tensor] | None = None,
        penalty: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        """One batch: a step of size `rate` on the loss + strength/2 ||w - anchors||^2, in place.

        The gradient is taken at `parameters`. It is applied to the tensors `onto` if given, else to `parameters`;
        only plain SGD takes `onto`. `penalty` is added to the loss, given what the model returned; `self.loss` does
        not count it.
        """

    def finish(self) -> None:  # noqa: B027 -- most steps leave nothing open
        """Takes a step that waits for more batches, after the last batch."""

    @contextlib.contextmanager
    def at(self, elsewhere: list[torch.Tensor]) -> Iterator[None]:
        """Inside the context, the trainable parameters are the tensors `elsewhere`, in the order of `parameters`.

        Steps change these tensors. Buffers stay. At the end of the context the module has its own tensors again.
        """
        own = self._homes
        self._move_to(elsewhere)
        try:
            yield
        finally:
            self._move_to(own)

    def _share(self, rate: float) -> float:
        """A step size in units of the learning rate."""
        usual = self._work.settings.learning_rate
        return rate / usual if usual else 1.0

    def _count(self, loss: torch.Tensor, samples: int) -> None:
        self._seen += samples
        if loss.device == CPU:
            self._add(loss.item(), samples)
        else:  # a GPU works on the last steps while the next ones are prepared; to read a loss is to wait for it
            self._losses.append((loss.detach(), samples))
            if len(self._losses) == MOST_LOSSES:
                self._sum_up()
        self._work.control.tick()

    def _sum_up(self) -> None:
        values = torch.stack([loss.reshape(()) for loss, _ in self._losses]).tolist() if self._losses else []
        for value, (_, samples) in zip(values, self._losses, strict=True):
            self._add(value, samples)
        self._losses.clear()

    def _add(self, loss: float, samples: int) -> None:
        self._loss_sum += loss * samples
        self._counted += 1
        if self._work.no_loss is None and not math.isfinite(loss):
            self._work.no_loss = NoLoss(self._counted, loss, self._last)
        self._last = loss

    def _move_to(self, homes: list[torch.Tensor]) -> None:
        self._homes = homes
        for parameter, home in zip(self.parameters, homes, strict=True):
            parameter.data = home

    def _bring_home(self) -> None:
        """Copies values back if the model gave a parameter other memory (`weight.data = ...`, to limit its norm)."""
        for parameter, home in zip(self.parameters, self._homes, strict=True):
            if parameter.data_ptr() != home.data_ptr():
                home.copy_(parameter.data)
                parameter.data = home
