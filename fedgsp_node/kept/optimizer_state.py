"""The state of the optimisers of a training: where it comes from, and where it goes."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedgsp.errors import TaskError
from fedgsp_node.kept.personal_state import Arrays
from fedgsp_node.model.arrays import array_of, tensor_of

#: Between the parts of a name: place and class of the optimiser, kind of value, entry, parameter.
_BETWEEN = "/"
_TENSOR, _NUMBER = "tensor", "number"
#: State of each parameter by its name: entry -> value.
State = Mapping[str, Mapping[str, torch.Tensor | float]]


class States(abc.ABC):
    """The states of the optimisers of one training, in the order in which the training makes them.

    Most trainings have one optimiser; Ditto has one for each of its two models. `names` are those of the parameters,
    by `id()`.
    """

    @abc.abstractmethod
    def begin(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> int:
        """Gives a fresh optimiser the state that there is for it; returns its place."""

    @abc.abstractmethod
    def end(self, place: int, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Notes the state of an optimiser after its last step; raises TaskError if it cannot be noted."""


class KeptStates(States):
    """States that stay on the node from one training of a client to the next."""

    def __init__(self, kept: Arrays | None = None) -> None:
        """`kept` is what an earlier training left in `arrays`."""
        self._kept: Arrays = kept or {}
        self._made = 0
        #: What the training has left, by name.
        self.arrays: dict[str, np.ndarray] = {}
        #: Whether an optimiser began without state because another one had left the state that was kept.
        self.anew = False

    def begin(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> int:
        """As in the base class."""
        place, self._made = self._made, self._made + 1
        state: dict[str, dict[str, Any]] = {}
        for key, array in self._kept.items():
            of, left_by, kind, entry, name = key.split(_BETWEEN, 4)
            if int(of) == place and left_by != type(optimizer).__name__:
                self.anew = True
            elif int(of) == place:
                value = tensor_of(np.array(array)) if kind == _TENSOR else array.item()
                state.setdefault(name, {})[entry] = value
        load(optimizer, names, state)
        return place

    def end(self, place: int, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """As in the base class. Raises TaskError for an entry that is neither a number nor a tensor.

        Raises it also for an optimiser of another package that has no entry: what it keeps elsewhere would be lost.
        """
        for name, state in states_of(optimizer, names):
            for entry, value in state.items():
                if not isinstance(value, torch.Tensor | int | float) or _BETWEEN in entry:
                    raise TaskError(
                        f"the state of {type(optimizer).__name__} has an entry {entry!r} of type"
                        f" {type(value).__name__}, which cannot be kept",
                        "give --optimizer-state fresh, or use an optimiser whose state are tensors and numbers",
                    )
                kind = _TENSOR if isinstance(value, torch.Tensor) else _NUMBER
                array = array_of(value) if isinstance(value, torch.Tensor) else np.array(value)
                self.arrays[_BETWEEN.join((str(place), type(optimizer).__name__, kind, entry, name))] = array.copy()
        if not any(optimizer.state.values()) and not type(optimizer).__module__.startswith("torch."):
            raise TaskError(
                f"{type(optimizer).__name__} has nothing in its `state`, so nothing of it can be kept",
                "let it write what it remembers into state[parameter], or give --optimizer-state fresh",
            )


def load(optimizer: torch.optim.Optimizer, names: Mapping[int, str], state: State) -> None:
    """Gives a fresh optimiser a state. Parameters that `state` does not name stay as they are.

    Tensors of the dtype and the device of their parameter are taken without a copy.
    """
    saved = optimizer.state_dict()
    for number, parameter in enumerate(parameters_of(optimizer)):
        if (found := state.get(_name(optimizer, parameter, names))) is not None:
            saved["state"][number] = dict(found)
    if state:
        optimizer.load_state_dict(saved)
        _undo_casts(optimizer, saved["state"])


def _undo_casts(optimizer: torch.optim.Optimizer, saved: Mapping[int, Mapping[str, Any]]) -> None:
    """Gives the entries the dtypes they had: torch casts all but the count of steps to the dtype of the parameter.

    A product of decay rates (NAdam) would lose most of its digits beside a parameter in bfloat16.
    """
    for number, parameter in enumerate(parameters_of(optimizer)):
        for entry, value in saved.get(number, {}).items():
            loaded = optimizer.state[parameter][entry]
            if isinstance(value, torch.Tensor) and loaded.dtype != value.dtype:
                optimizer.state[parameter][entry] = value.to(loaded.device, copy=True)


def states_of(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> Iterator[tuple[str, Mapping[str, torch.Tensor | float]]]:
    """The name and the state of each parameter that has one, without empty entries."""
    for parameter in parameters_of(optimizer):
        if found := optimizer.state.get(parameter):
            entries = {entry: value for entry, value in found.items() if value is not None}
            yield _name(optimizer, parameter, names), entries


def _name(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, names: Mapping[int, str]) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise TaskError(
            f"{type(optimizer).__name__} steps a parameter of shape {tuple(parameter.shape)} that is not the model's",
            "give the optimiser only the parameters that optimizer() gets",
        )
    return name


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The parameters in the order in which torch numbers them in a state_dict()."""
    for group in optimizer.param_groups:
        parameters: Sequence[torch.Tensor] = group["params"]
        yield from parameters
