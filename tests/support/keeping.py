"""An oracle of optimiser state that stays with the clients: torch's own state_dict(), loaded into a new optimiser."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

from tests.support.reference import Reference, State


@dataclasses.dataclass
class Keeping(Reference):
    """Every client's optimiser continues from the state that its last training has left."""

    #: By client; no entry: it begins without state.
    states: dict[int, Any] = dataclasses.field(default_factory=dict)

    def train(self, state: State, client: int, number: int) -> State:
        make = self.optimizer
        made: list[torch.optim.Optimizer] = []

        def resumed(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
            made.append(make(parameters, rate))
            if client in self.states:
                made[0].load_state_dict(copy.deepcopy(self.states[client]))
            return made[0]

        result = Reference.train(dataclasses.replace(self, optimizer=resumed), state, client, number)
        self.states[client] = copy.deepcopy(made[0].state_dict())
        return result
