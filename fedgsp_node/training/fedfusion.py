"""FedFusion (X. Yao and others, ICIP 2019; section 6): SGD on features fused with those of the received model."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import TensorSpec
from fedgsp.trainings import GAMMA, PREVIOUS, FedFusionOptions
from fedgsp_node.model.named_state import state_of
from fedgsp_node.model.nested import mapped
from fedgsp_node.model.torch_weights import swapped
from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.frozen import Frozen
from fedgsp_node.training.steps import batches, descent


def convolved(ours: torch.Tensor, theirs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The operator conv: a 1x1 convolution of both features, the local ones first.

    Features have shape (n, C, ...), `weight` (C, 2C), `bias` (C,).
    """
    both = torch.cat([ours, theirs], dim=1).movedim(1, -1)
    return nn.functional.linear(both, weight, bias).movedim(-1, 1)


def weighted(ours: torch.Tensor, theirs: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """The operators multi and single: gamma theirs + (1 - gamma) ours.

    Features have shape (n, C, ...), `gamma` (C,) or (1,). If both features are the same, so is the result, bit for
    bit.
    """
    return ours + gamma.view(-1, *[1] * (ours.ndim - 2)) * (theirs - ours)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class _ReachedError(Exception):
    """Ends a forward pass at the layer that returns the features; the exception has them as its argument."""


class Fusion:
    """Fuses the output of one layer of a module, in place of that output, with the features of another model.

    As long as there are no others, a layer's output is fused with itself: the extractor is then the global one. With
    `previous`, it is then fused with the features of the model that was received before the last training. `previous`
    maps the name of each tensor of the model to the buffer that has its value in that model.
    """

    def __init__(self, module: nn.Module, layer: str, previous: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._previous = previous or {}
        self._theirs: torch.Tensor | None = None
        self._reading = self._looking_back = False
        module.get_submodule(layer).register_forward_hook(self._fuse)
        if self._previous:
            module.register_forward_pre_hook(self._look_back, with_kwargs=True)
            module.register_forward_hook(self._look_ahead, always_call=True)

    def received(self, values: Mapping[str, torch.Tensor]) -> None:
        """Keeps a received model for evaluations, if they need it; `values` are its tensors by name."""
        for name, buffer in self._previous.items():
            self._module.get_buffer(buffer).copy_(values[name])

    def features(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """The features of inputs of the module before the fusion; the rest of the module is not computed."""
        self._reading = True
        try:
            self._module(*inputs, **named)
        except _ReachedError as reached:
            features: torch.Tensor = reached.args[0]
            return features
        finally:
            self._reading = False
        raise TaskError("the model does not call the layer that the task names as `extractor`", "name another layer")

    @contextlib.contextmanager
    def beside(self, features: torch.Tensor) -> Iterator[None]:
        """Inside the context, the module's own features are fused with these."""
        self._theirs = features
        try:
            yield
        finally:
            self._theirs = None

    def _look_back(self, module: nn.Module, inputs: Any, named: Any) -> None:
        if module.training or self._reading or self._theirs is not None:
            return
        values = {name: module.get_buffer(buffer) for name, buffer in self._previous.items()}
        with swapped(module, values), torch.no_grad():  # a model may change its input in place
            self._theirs = self.features(*mapped(_copied, inputs), **mapped(_copied, named))
        self._looking_back = True

    def _look_ahead(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._looking_back and not self._reading:
            self._theirs, self._looking_back = None, False

    def _fuse(self, _layer: nn.Module, _inputs: Any, ours: torch.Tensor) -> torch.Tensor:
        if self._reading:
            raise _ReachedError(ours)
        theirs = ours if self._theirs is None else self._theirs
        get = self._module.get_parameter
        if hasattr(self._module, GAMMA):
            return weighted(ours, theirs, get(GAMMA))
        return convolved(ours, theirs, get("fusion_weight"), get("fusion_bias"))


def extend(
    module: nn.Module, features: TensorSpec, options: FedFusionOptions, model: tuple[TensorSpec, ...] = ()
) -> Fusion:
    """Gives a module the parameters of a fusion, and lets its features pass through it.

    Gamma begins at 0; the convolution begins as torch begins one. With `evaluation=previous`, the module also gets a
    buffer for each tensor of the `model`, which begins with the value of that tensor.
    """
    before = state_of(module) if options.evaluation == "previous" else {}
    previous = {spec.name: f"{PREVIOUS}{number}" for number, spec in enumerate(model) if before}
    for name, buffer in previous.items():
        module.register_buffer(buffer, before[name].detach().clone())
    (channels,), dtype = features.shape, getattr(torch, features.dtype)
    if options.operator == "conv":
        convolution = nn.Conv2d(2 * channels, channels, kernel_size=1, dtype=dtype)
        assert convolution.bias is not None
        module.register_parameter("fusion_weight", nn.Parameter(convolution.weight.detach().flatten(1)))
        module.register_parameter("fusion_bias", nn.Parameter(convolution.bias.detach()))
    else:
        count = channels if options.operator == "multi" else 1
        module.register_parameter(GAMMA, nn.Parameter(torch.zeros(count, dtype=dtype)))
    return Fusion(module, features.name, previous)


def train(work: LocalWork) -> Result:
    """Local epochs on the loss of C(F(E(x), E_received(x))): extractor E, fusion F and classifier C are trained."""
    fusion, rate, frozen = work.added, work.settings.learning_rate, Frozen(work)
    if not isinstance(fusion, Fusion):
        raise TaskError(
            "the model of this node has no fusion, because the run began with another training", "start a new run"
        )
    fusion.received(frozen.values)
    with descent(work) as steps:
        for batch in batches(work, work.settings.local_epochs):
            with frozen.stream():
                theirs = fusion.features(mapped(torch.clone, batch.x))  # a model may change its input in place
            with fusion.beside(theirs):
                steps.step(batch, rate)
    return Result(steps.loss, steps.norm)


FEDFUSION = Algorithm(train, extend=extend)
