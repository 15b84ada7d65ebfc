"""The state of a client's optimisers, which stays on its node from one training to the next."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedgsp.errors import TaskError
from fedgsp_node.personal_state import Arrays

#: Between the parts of a name: place of the optimiser, kind of value, entry, parameter.
_BETWEEN = "/"
_TENSOR, _NUMBER = "tensor", "number"


class OptimizerStates:
    """The states of the optimisers of one training, in the order in which the training makes them.

    Most trainings have one optimiser; Ditto has one for each of its two models.
    """

    def __init__(self, kept: Arrays | None = None) -> None:
        """`kept` is what an earlier training left in `arrays`."""
        self._kept: Arrays = kept or {}
        self._made = 0
        #: What the training has left, by name.
        self.arrays: dict[str, np.ndarray] = {}

    def begin(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> int:
        """Gives a fresh optimiser the state that was kept for it; returns its place. `names` are by `id()`."""
        place, self._made = self._made, self._made + 1
        numbers = {names[id(parameter)]: number for number, parameter in enumerate(_parameters(optimizer))}
        state: dict[int, dict[str, Any]] = {}
        for key, array in self._kept.items():
            of, kind, entry, name = key.split(_BETWEEN, 3)
            if int(of) != place or name not in numbers:
                continue
            value = torch.from_numpy(np.array(array)) if kind == _TENSOR else array.item()
            state.setdefault(numbers[name], {})[entry] = value
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return place

    def end(self, place: int, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Notes the state of an optimiser after its last step. TaskError for an entry that is no number or tensor."""
        for parameter in _parameters(optimizer):
            for entry, value in optimizer.state.get(parameter, {}).items():
                if value is None:
                    continue
                if not isinstance(value, torch.Tensor | int | float) or _BETWEEN in entry:
                    raise TaskError(
                        f"the state of {type(optimizer).__name__} has an entry {entry!r} of type"
                        f" {type(value).__name__}, which cannot be kept",
                        "give --optimizer-state fresh, or use an optimiser whose state are tensors and numbers",
                    )
                kind = _TENSOR if isinstance(value, torch.Tensor) else _NUMBER
                array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.array(value)
                self.arrays[_BETWEEN.join((str(place), kind, entry, names[id(parameter)]))] = array.copy()


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The parameters in the order in which torch numbers them in a state_dict()."""
    for group in optimizer.param_groups:
        parameters: Sequence[torch.Tensor] = group["params"]
        yield from parameters
