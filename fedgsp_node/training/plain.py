"""Plain SGD steps: no momentum, no weight decay (section 0). They need little memory besides the model."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fedgsp_node.training.base import Batch, LocalWork
from fedgsp_node.training.factored import Factors, large
from fedgsp_node.training.stepping import Steps

#: The users of a parameter that only one convolution uses.
_FILTERS = ([nn.Conv1d], [nn.Conv2d], [nn.Conv3d])


class PlainSteps(Steps):
    """Plain SGD steps, with the same bits as `torch.optim.SGD` but for large dense layers (`factored`)."""

    def __init__(self, work: LocalWork, factors: Factors, scheduled: Callable[[int], float]) -> None:
        """`scheduled` gives the factor on the step size, by the number of the step from 0."""
        super().__init__(work)
        self._factors, self._scheduled, self._taken = factors, scheduled, 0
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        # The arguments of the running step, for hooks:
        self._rate = self._pull = 0.0
        self._anchors: Sequence[torch.Tensor] = ()
        self._onto: Sequence[torch.Tensor] = ()
        self._left: set[int] = set()

    def step(
        self,
        batch: Batch,
        rate: float,
        anchors: Sequence[torch.Tensor] = (),
        strength: float = 0.0,
        onto: Sequence[torch.Tensor] | None = None,
        penalty: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        """One batch is one step."""
        factor = self._scheduled(self._taken)
        self._taken += 1
        share, rate = factor * self._share(rate), factor * rate
        self._rate, self._pull, self._anchors = rate, rate * strength, anchors
        self._onto = self.parameters if onto is None else onto
        outputs = self._work.module(batch.x)
        loss = self._work.task.loss(outputs, batch.y)
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
        self.norm = self.norm * (1 - rate * strength) + share
        self._count(loss, batch.samples)

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
