"""SGD steps for all local training: mean loss over the mini-batch, no momentum, no weight decay (section 0)."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fedgsp.weights import Weights
from fedgsp_node.training.base import LocalWork, Result
from fedgsp_node.training.factored import Factors, factored_gradients, large

#: The users of a parameter that only one convolution uses.
_FILTERS = ([nn.Conv1d], [nn.Conv2d], [nn.Conv3d])


class Descent:
    """Takes SGD steps with the module of `work`. After each step it calls `tick`, which may raise StoppedError."""

    def __init__(self, work: LocalWork, factors: Factors) -> None:
        self._work = work
        self._names = [name for name, parameter in work.module.named_parameters() if parameter.requires_grad]
        self._factors = factors
        self._loss_sum, self._seen = 0.0, 0
        #: The trainable parameters.
        self.parameters = [parameter for parameter in work.module.parameters() if parameter.requires_grad]
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        #: The memory in which the values of each parameter must be after a step.
        self._homes = [parameter.data for parameter in self.parameters]
        # The arguments of the running step, for hooks:
        self._rate = self._pull = 0.0
        self._anchors: Sequence[torch.Tensor] = ()
        self._onto: Sequence[torch.Tensor] = ()
        self._left: set[int] = set()

    @property
    def loss(self) -> float:
        """Mean loss over all samples seen, computed where their gradients were taken."""
        return self._loss_sum / self._seen

    def trained(self, weights: Weights) -> list[torch.Tensor]:
        """Views of the tensors in `weights` that correspond to `parameters`."""
        return [torch.from_numpy(weights.arrays[name]) for name in self._names]

    def step(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        rate: float,
        anchors: Sequence[torch.Tensor] = (),
        strength: float = 0.0,
        onto: Sequence[torch.Tensor] | None = None,
        penalty: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        """One step of size `rate` on the loss + strength/2 ||w - anchors||^2, for one batch `x`, `y`, in place.

        The gradient is taken at `parameters`. It is applied to the tensors `onto` if given, else to `parameters`.
        `penalty` is added to the loss, given what the model returned; `self.loss` does not count it.
        """
        self._rate, self._pull, self._anchors = rate, rate * strength, anchors
        self._onto = self.parameters if onto is None else onto
        outputs = self._work.module(x)
        loss = self._work.task.loss(outputs, y)
        self._left = set(range(len(self.parameters)))
        self._factors.backward(loss if penalty is None else loss + penalty(outputs), self.parameters)
        with torch.no_grad():
            for place in self._left:
                self._apply(place)
            self._left.clear()
            for weight, grad, inputs in self._factors.kept:
                self._onto[self._places[id(weight)]].addmm_(grad.t(), inputs, alpha=-rate)
        self._factors.kept.clear()
        self._bring_home()
        self._loss_sum += loss.item() * len(y)
        self._seen += len(y)
        self._work.control.tick()

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

    @contextlib.contextmanager
    def early(self) -> Iterator[None]:
        """Inside the context, gradients of large filters are applied and freed during the backward pass.

        This saves memory. It is done only for parameters that a single convolution layer of torch uses: the backward
        pass may still need the old values for any other use.
        """
        # By `id()` of a parameter: the classes of all layers that use it.
        owners: dict[int, list[type[nn.Module]]] = {}
        for layer in self._work.module.modules():
            for parameter in layer.parameters(recurse=False):
                owners.setdefault(id(parameter), []).append(type(layer))

        def apply(parameter: torch.Tensor) -> None:
            place = self._places[id(parameter)]
            if place in self._left:
                self._left.remove(place)
                with torch.no_grad():
                    self._apply(place)

        hooks = [
            parameter.register_post_accumulate_grad_hook(apply)
            for parameter in self.parameters
            if large(parameter) and owners[id(parameter)] in _FILTERS
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for parameter in self.parameters:
                parameter.grad = None

    def _apply(self, place: int) -> None:
        parameter, onto = self.parameters[place], self._onto[place]
        if self._pull:
            onto.lerp_(self._anchors[place], self._pull)  # reads memory once, and needs no temporary tensor
        if parameter.grad is not None:
            onto.add_(parameter.grad, alpha=-self._rate)
            parameter.grad = None


@contextlib.contextmanager
def descent(work: LocalWork) -> Iterator[Descent]:
    """A context for the SGD steps of one client. It sets the module to training mode."""
    work.module.train()
    with factored_gradients(work.module) as factors:
        steps = Descent(work, factors)
        with steps.early():
            yield steps


def batches(work: LocalWork, epochs: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches (x, y) of `epochs` epochs, each in a new random order, drawn from `work.rng` (seeded in `clients.py`).

    A short last batch is dropped if the task drops it, or if batch norm cannot use it, but not if it is the only batch
    (section 0).
    """
    count, size = len(work.x), work.settings.batch_size
    short = count % size
    used = count
    if count > size and (work.task.drop_last or (short == 1 and normalises(work.module))):
        used = count - short
    for _ in range(epochs):
        for rows in torch.split(torch.from_numpy(work.rng.permutation(count))[:used], size):
            yield work.x[rows], work.y[rows]


def normalises(module: nn.Module) -> bool:
    """Whether the module has batch norm."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def copy(tensors: Iterable[torch.Tensor], into: Iterable[torch.Tensor]) -> None:
    """Copies the values of `tensors` into the tensors `into`."""
    with torch.no_grad():
        for tensor, other in zip(tensors, into, strict=True):
            other.copy_(tensor)


def move(tensors: Iterable[torch.Tensor], anchors: Iterable[torch.Tensor], share: float) -> None:
    """Moves each tensor towards its anchor by `share` (0 to 1) of their distance, in place."""
    with torch.no_grad():
        for tensor, anchor in zip(tensors, anchors, strict=True):
            tensor.lerp_(anchor, share)  # reads memory once, and needs no temporary tensor


def descend(work: LocalWork, strength: float = 0.0) -> Result:
    """Local epochs of SGD on the loss + strength/2 ||w - received||^2."""
    rate, norm = work.settings.learning_rate, 0.0
    with descent(work) as steps:
        anchors = steps.trained(work.received) if strength else []
        for x, y in batches(work, work.settings.local_epochs):
            steps.step(x, y, rate, anchors, strength)
            # FedNova's ||a||_1: the sum over steps of the share of a step's gradient that remains in the result.
            norm = norm * (1 - rate * strength) + 1
    return Result(steps.loss, norm)
