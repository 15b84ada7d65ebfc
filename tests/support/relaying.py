"""An oracle of optimiser state that is relayed with the model: in plain torch, by names of its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import nn

from tests.support.reference import Reference, State, as_numpy, as_torch


@dataclasses.dataclass
class Relaying(Reference):
    """The state of the optimiser is a part of the model, under names that begin with "state"; it begins as nothing."""

    def initial(self) -> State:
        """Zeros for each entry that torch makes in a step."""
        model = self.task.model()
        named = trained_of(model)
        optimizer = self.optimizer(list(named.values()), 0.0)
        for parameter in named.values():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        zeros = {name: np.zeros_like(array) for name, array in entries(named, optimizer).items()}
        return {**super().initial(), **zeros}

    def train(self, state: State, client: int, number: int) -> State:
        made: list[torch.optim.Optimizer] = []
        make, named = self.optimizer, list(trained_of(self.task.model()))
        parameters: list[nn.Parameter] = []

        def resumed(of: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
            parameters.extend(parameter for parameter in of if parameter.requires_grad)
            made.append(make(parameters, rate))
            for name, parameter in zip(named, parameters, strict=True):
                if state[f"state step {name}"]:
                    for key in (key for key in state if key.startswith("state ") and key.endswith(f" {name}")):
                        value = as_torch(np.array(state[key]))
                        made[0].state[parameter][key.split(" ")[1]] = value.float() if value.ndim == 0 else value
            return made[0]

        trained = Reference.train(dataclasses.replace(self, optimizer=resumed), model_of(state), client, number)
        return {**trained, **entries(dict(zip(named, parameters, strict=True)), made[0])}


def trained_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def entries(named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> State:
    """The state of an optimiser; single numbers in float64, and the count 1 if torch counts no steps."""
    found: State = {}
    for name, parameter in named.items():
        kept = {"step": torch.tensor(1.0), **{k: v for k, v in optimizer.state[parameter].items() if v is not None}}
        for entry, value in kept.items():
            array = as_numpy(value.detach()).copy()
            found[f"state {entry} {name}"] = array.astype(np.float64) if array.ndim == 0 else array
    return found


def model_of(state: State) -> State:
    """The model alone."""
    return {name: array for name, array in state.items() if not name.startswith("state ")}
