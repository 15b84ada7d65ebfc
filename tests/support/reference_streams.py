"""FedAvg's rounds with FedMMD or FedFusion inside, once more: what runs must equal, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tests.support.plain_streams import (
    Objective,
    frozen_copy,
    fused,
    fusion_objective,
    mmd_objective,
    new_fusion,
    replaced,
)
from tests.support.reference import State, stream, weighted_mean
from tests.support.reference_coalitions import Batch, CoalitionReference, Learnt

FUSION = ("fusion_weight", "fusion_bias", "fusion_gamma")
PREVIOUS = "fusion_previous_"


@dataclass
class StreamReference(CoalitionReference):
    """`numbers` are the options of `training`, which is fedmmd or fedfusion; `play_fedavg` plays the run."""

    def initial(self) -> State:
        channels = self._channels() if self.training == "fedfusion" else 0
        state = super().initial()
        if channels:  # what a fusion draws, it draws after the model
            made = new_fusion(self.numbers["operator"], channels)
            state.update({name: values.numpy() for name, values in made.items()})
            state.update(self._looking_back(state))
        return state

    def module(self, state: State) -> nn.Module:
        """The whole model as it is evaluated: its features are fused with themselves, or with those of the model
        before it."""
        module, fusion = self._parts(state)
        if not len(fusion):
            return module
        before = {int(name.removeprefix(PREVIOUS)): state[name] for name in state if name.startswith(PREVIOUS)}
        theirs: list[torch.Tensor] = []
        if before:
            names = list(module.state_dict())
            second = self.task.model().eval()
            second.load_state_dict({names[number]: torch.from_numpy(value) for number, value in before.items()})
            module.register_forward_pre_hook(lambda _module, inputs: self._read(second, inputs[0], theirs))
        layer = module.get_submodule(self.task.extractor)
        layer.register_forward_hook(
            lambda _layer, _inputs, features: fused(fusion, features, theirs[-1] if theirs else features)
        )
        return module

    def _read(self, second: nn.Module, x: torch.Tensor, seen: list[torch.Tensor]) -> None:
        with replaced(second, self.task.extractor, lambda features: seen.append(features)), torch.no_grad():
            second(x)

    def learn(self, state: State, client: int, number: int) -> Learnt:
        module, fusion = self._parts(state)
        received = frozen_copy(module)
        if self.training == "fedmmd":
            objective = mmd_objective(module, received, self.numbers["lambda"], self.numbers["of"], self.task.loss)
        else:
            objective = fusion_objective(module, received, self.task.extractor, fusion, self.task.loss)
        rng = stream(self.seed, "batch-order", number, client)
        steps = _descend(nn.ModuleList([module, fusion]), self.batches(client, rng), self.learning_rate, objective)
        after = [*module.state_dict().items(), *fusion.state_dict().items()]
        learnt = {name: values.numpy().copy() for name, values in after}
        return Learnt({**learnt, **self._looking_back(state)}, steps)

    def accuracy(self, state: State) -> float:
        """Over the test parts of all clients."""
        judged = [self._judged(state, client, "test") for client in self.clients]
        return sum(right for right, _, _ in judged) / sum(samples for _, _, samples in judged)

    def loss(self, state: State) -> float:
        """Over the same samples, the mean."""
        judged = [self._judged(state, client, "test") for client in self.clients]
        return sum(loss for _, loss, _ in judged) / sum(samples for _, _, samples in judged)

    def _parts(self, state: State) -> tuple[nn.Module, nn.ParameterDict]:
        own = {name: array for name, array in state.items() if name not in FUSION and not name.startswith(PREVIOUS)}
        fusion = {name: torch.from_numpy(array.copy()) for name, array in state.items() if name in FUSION}
        return super().module(own), nn.ParameterDict(fusion)

    def _looking_back(self, state: State) -> State:
        """What a client that received this model uploads of it, beside the model that it has trained."""
        if self.numbers.get("evaluation") != "previous":
            return {}
        own = [array for name, array in state.items() if not name.startswith("fusion_")]
        return {f"{PREVIOUS}{number}": array.copy() for number, array in enumerate(own)}

    def _channels(self) -> int:
        model, seen = self.task.model().eval(), []
        with replaced(model, self.task.extractor, lambda features: seen.append(features.shape[1])):
            model(torch.from_numpy(self.task.data(0).train.x[:1]))
        return int(seen[0])


@dataclass
class Smoothing:
    """Means by samples, of which gamma alone is smoothed from round to round."""

    mu: float = 0.9
    gamma: np.ndarray | None = None

    def __call__(self, states: list[State], weights: list[int]) -> State:
        mean = weighted_mean(states, weights)
        if "fusion_gamma" in mean:
            fresh = mean["fusion_gamma"].astype(np.float64)
            before = np.zeros_like(fresh) if self.gamma is None else self.gamma
            self.gamma = (1 - self.mu) * fresh + self.mu * before
            mean["fusion_gamma"] = self.gamma.astype(np.float32)
        return mean


def _descend(parts: nn.Module, batches: Iterator[Batch], rate: float, objective: Objective) -> float:
    parts.train()
    optimiser, count = torch.optim.SGD(parts.parameters(), lr=rate), 0
    for x, y in batches:
        optimiser.zero_grad()
        objective(x, y)[1].backward()
        optimiser.step()
        count += 1
    return count
