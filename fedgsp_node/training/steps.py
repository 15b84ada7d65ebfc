"""The steps that all local training is made of: no momentum, no weight decay, mean loss over the mini-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from fedgsp.weights import Weights
from fedgsp_node.training.base import LocalWork, Result
from fedgsp_node.training.factored import Factors, factored_gradients, large

_FILTERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Descent:
    """Takes gradients where the module is, and applies them; ends each step with a tick of the control."""

    def __init__(self, work: LocalWork, factors: Factors) -> None:
        self._work = work
        self._names = [name for name, parameter in work.module.named_parameters() if parameter.requires_grad]
        self._factors = factors
        self._loss_sum, self._seen = 0.0, 0
        #: Those that are trained.
        self.parameters = [parameter for parameter in work.module.parameters() if parameter.requires_grad]
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        #: Where the parameters belong.
        self._homes = [parameter.data for parameter in self.parameters]
        # Of the step that is under way:
        self._rate = self._pull = 0.0
        self._anchors: Sequence[torch.Tensor] = ()
        self._onto: Sequence[torch.Tensor] = ()
        self._left: set[int] = set()

    @property
    def loss(self) -> float:
        """Mean over the samples seen of the loss where their gradients were taken."""
        return self._loss_sum / self._seen

    def trained(self, weights: Weights) -> list[torch.Tensor]:
        """Views of what belongs to `parameters` in other weights of this model."""
        return [torch.from_numpy(weights.arrays[name]) for name in self._names]

    def step(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        rate: float,
        anchors: Sequence[torch.Tensor] = (),
        strength: float = 0.0,
        onto: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """One step on the loss + strength/2 ||w - anchors||^2, in place, or of `onto` with the gradient from here."""
        self._rate, self._pull, self._anchors = rate, rate * strength, anchors
        self._onto = self.parameters if onto is None else onto
        loss = self._work.task.loss(self._work.module(x), y)
        self._left = set(range(len(self.parameters)))
        self._factors.backward(loss, self.parameters)
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
        """Within, the module computes with and changes these tensors in place of its own."""
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
        """A model may give a parameter other memory as it computes (`weight.data = ...`, to keep its norm small)."""
        for parameter, home in zip(self.parameters, self._homes, strict=True):
            if parameter.data_ptr() != home.data_ptr():
                home.copy_(parameter.data)
                parameter.data = home

    @contextlib.contextmanager
    def early(self) -> Iterator[None]:
        """Within, gradients of large filters are applied, and dropped, while others are still to come.

        Only where nothing but a layer of torch's own uses the parameter: another use, even one without gradient,
        may still be needed by the backward pass.
        """
        alone = _of_one_filter(self._work.module)

        def apply(parameter: torch.Tensor) -> None:
            place = self._places[id(parameter)]
            if place in self._left:
                self._left.remove(place)
                with torch.no_grad():
                    self._apply(place)

        hooks = [
            parameter.register_post_accumulate_grad_hook(apply)
            for parameter in self.parameters
            if large(parameter) and id(parameter) in alone
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
            onto.lerp_(self._anchors[place], self._pull)  # one pass over memory, and no temporary
        gradient = parameter.grad
        if gradient is not None:
            onto.add_(gradient, alpha=-self._rate)
            parameter.grad = None


def _of_one_filter(module: nn.Module) -> set[int]:
    """Ids of the parameters that belong to one convolution and to nothing else."""
    owners: dict[int, list[nn.Module]] = {}
    for layer in module.modules():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(layer)
    return {key for key, layers in owners.items() if len(layers) == 1 and type(layers[0]) in _FILTERS}


@contextlib.contextmanager
def descent(work: LocalWork) -> Iterator[Descent]:
    """Steps of one client, in training mode."""
    work.module.train()
    with factored_gradients(work.module) as factors:
        steps = Descent(work, factors)
        with steps.early():
            yield steps


def batches(work: LocalWork, epochs: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The data in an order of its own every epoch, all but what `_left_over` leaves out."""
    size = work.settings.batch_size
    count = len(work.x) - _left_over(work, size)
    for _ in range(epochs):
        order = torch.from_numpy(work.rng.permutation(len(work.x)))[:count]
        for rows in torch.split(order, size):
            yield work.x[rows], work.y[rows]


def _left_over(work: LocalWork, size: int) -> int:
    """Samples of the short last batch, if the task drops it, or if it is one sample that batch norm would refuse."""
    short = len(work.x) % size
    if len(work.x) <= size:
        return 0
    return short if work.task.drop_last or (short == 1 and normalises(work.module)) else 0


def normalises(module: nn.Module) -> bool:
    """Whether some layer takes mean and variance over the samples of a batch."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def copy(tensors: Iterable[torch.Tensor], into: Iterable[torch.Tensor]) -> None:
    """Copies tensors over others."""
    with torch.no_grad():
        for tensor, other in zip(tensors, into, strict=True):
            other.copy_(tensor)


def move(tensors: Iterable[torch.Tensor], anchors: Iterable[torch.Tensor], share: float) -> None:
    """Moves tensors by this share of the way to their anchors, in place."""
    with torch.no_grad():
        for tensor, anchor in zip(tensors, anchors, strict=True):
            tensor.lerp_(anchor, share)  # one pass over memory, and no temporary


def descend(work: LocalWork, strength: float = 0.0) -> Result:
    """Local epochs on the loss + strength/2 ||w - received||^2."""
    rate, norm = work.settings.learning_rate, 0.0
    with descent(work) as steps:
        anchors = steps.trained(work.received) if strength else []
        for x, y in batches(work, work.settings.local_epochs):
            steps.step(x, y, rate, anchors, strength)
            # FedNova's ||a||_1: the share of every step's gradient that the later steps leave.
            norm = norm * (1 - rate * strength) + 1
    return Result(steps.loss, norm)
