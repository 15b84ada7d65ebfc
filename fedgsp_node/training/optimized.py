"""Steps by an optimiser of torch, with clipping and accumulation of gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedgsp.errors import TaskError
from fedgsp.tensors.memory import room
from fedgsp_node.devices import CPU
from fedgsp_node.kept.optimizer_state import States
from fedgsp_node.training.base import Batch, LocalWork
from fedgsp_node.training.factored import large, still_trained
from fedgsp_node.training.stepping import Steps

#: Factor on the loss in float16, at first; it is halved, and a step is left out, when a gradient is infinite.
FIRST_SCALE = 1024.0


def _room(parameter: torch.Tensor) -> torch.Tensor:
    """Memory for the gradient of a parameter."""
    return (
        torch.from_numpy(room(parameter.numel() * parameter.element_size())).view(parameter.dtype).view_as(parameter)
    )


class OptimizedSteps(Steps):
    """Steps by the optimiser of `work.stepping`.

    A step takes the mean gradient of several batches, in which each sample counts once.
    """

    def __init__(
        self,
        work: LocalWork,
        scheduled: Callable[[int], float],
        accumulate: int,
        states: States | None = None,
    ) -> None:
        """`scheduled` gives the factor on the step size, by the number of the step from 0.

        With `states`, the optimiser goes on from there; else it begins without state.
        """
        super().__init__(work)
        self._how = work.stepping
        self._optimizer = self._how.optimizer(self.parameters, work.settings.learning_rate)
        self._states = states
        self._names_by_id = {id(one): name for name, one in zip(self._names, self.parameters, strict=True)}
        self._place = states.begin(self._optimizer, self._names_by_id) if states is not None else 0
        # A task may give its groups of parameters other step sizes.
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._scheduled, self._accumulate = scheduled, accumulate
        # Small gradients would be 0 in float16. Trainings are short, so the scale begins low enough to last.
        half = self._how.precision == torch.float16
        self._scaler = torch.amp.GradScaler(work.device.type, init_scale=FIRST_SCALE, enabled=half)
        # In float16, sums over the samples of several batches would be infinite.
        self._unit = accumulate * work.settings.batch_size if half else 1
        #: What it changes; a task's optimiser may leave parameters out.
        self._stepped = [one for group in self._optimizer.param_groups for one in group["params"]]
        #: Steps that were due so far, and those that were taken.
        self._due = self._taken = 0
        self._waiting = self._samples = 0
        self._anchors: Sequence[torch.Tensor] = ()
        self._size = self._strength = self._momentum = 0.0
        # Between the temporary tensors of a backward pass, gradients of this size would leave holes in the heap.
        self._room = {id(one): _room(one) for one in self.parameters if large(one) and one.device == CPU}
        self._hooks = [
            one.register_post_accumulate_grad_hook(self._move) for one in self.parameters if id(one) in self._room
        ]

    def step(
        self,
        batch: Batch,
        rate: float,
        anchors: Sequence[torch.Tensor] = (),
        strength: float = 0.0,
        onto: Sequence[torch.Tensor] | None = None,
        penalty: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        """One batch; the step is taken when enough batches have come, with the size that the last one names.

        Raises ValueError for `onto`: a training that needs it declares itself `plain`.
        """
        if onto is not None:
            raise ValueError("an optimiser cannot apply a gradient to other tensors than its parameters")
        with self._how.autocast(self._work.device):
            outputs = self._work.module(batch.x)
            loss = self._work.task.loss(outputs, batch.y)
            whole = loss if penalty is None else loss + penalty(outputs)
        if self._accumulate > 1:
            whole = whole * (batch.samples / self._unit)
        torch.autograd.backward(self._scaler.scale(whole), inputs=still_trained(self.parameters))
        self._waiting, self._samples = self._waiting + 1, self._samples + batch.samples
        self._size, self._anchors, self._strength = self._share(rate), anchors, strength
        if self._waiting == self._accumulate:
            self._take()
        self._count(loss, batch.samples)

    def finish(self) -> None:
        """Takes the step of the batches that are left over, and notes the state.

        Raises TaskError if no step was taken, because each gradient was infinite.
        """
        if self._waiting:
            self._take()
        if self._due and not self._taken:
            raise TaskError(
                f"no step was taken: in float16, the gradients of all {self._due} steps were infinite",
                "give --precision bfloat16 or float32, or smaller inputs",
            )
        if self._states is not None:
            self._states.end(self._place, self._optimizer, self._names_by_id)

    def close(self) -> None:
        """Frees the gradients."""
        for hook in self._hooks:
            hook.remove()
        self._forget()

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _move(self, parameter: torch.Tensor) -> None:
        place, grad = self._room[id(parameter)], parameter.grad
        if grad is not None and not grad.is_sparse and grad.data_ptr() != place.data_ptr():
            parameter.grad = place.copy_(grad)

    @torch.no_grad()
    def _take(self) -> None:
        self._scaler.unscale_(self._optimizer)
        if self._accumulate > 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._samples / self._unit)
        if self._strength:
            for parameter, anchor in zip(self.parameters, self._anchors, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.add_(parameter - anchor, alpha=self._strength)
        if self._how.clip_norm:
            TaskError.require(
                not any(one.grad is not None and one.grad.is_sparse for one in self._stepped),
                "the model has sparse gradients, whose length torch does not take",
                "make its layers with sparse=False, or train without --clip-norm",
            )
            torch.nn.utils.clip_grad_norm_(self._stepped, self._how.clip_norm)
        factor = self._scheduled(self._due) * self._size
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        scale = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._bring_home()
        self._forget()
        if self._scaler.get_scale() >= scale:  # else a gradient was infinite, and no step was taken
            self._add_to_norm(factor)
            self._taken += 1
        self._due += 1
        self._waiting = self._samples = 0

    def _add_to_norm(self, factor: float) -> None:
        """FedNova's sum for SGD with momentum (section 6); for other optimisers it is the number of steps."""
        if self._how.make is not None:
            self.norm += 1
            return
        options = self._how.sgd
        gradient = 1 - self._work.settings.learning_rate * self._strength * self.norm
        kept = 1 - options.dampening if self._taken else 1.0
        self._momentum = options.momentum * self._momentum + kept * gradient
        taken = gradient + options.momentum * self._momentum if options.nesterov else self._momentum
        self.norm += factor * (taken if options.momentum else gradient)
