"""The state of an optimiser that came with a model, and leaves with it (section 7)."""

from collections.abc import Mapping

import torch

from fedgsp.errors import TaskError
from fedgsp.tensors.relayed_state import STEP, StateEntries, name_of
from fedgsp.tensors.weights import Weights
from fedgsp_node.kept.optimizer_state import States, load, states_of
from fedgsp_node.model.arrays import tensor_of


class RelayedState(States):
    """The state in the tensors of a model. On the CPU, an optimiser changes these tensors themselves."""

    def __init__(self, weights: Weights, entries: StateEntries) -> None:
        """`weights` is the model that is trained, with the state beside it."""
        self._arrays = weights.arrays
        self._entries = entries

    def begin(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> int:
        """As in the base class. TaskError for a model that came without state."""
        if missing := [name for name in names.values() if name_of(STEP, name) not in self._arrays]:
            raise TaskError(f"the model came without the state of {missing[0]!r}", "update FedGSP on all machines")
        begun = (name for name in names.values() if self._arrays[name_of(STEP, name)].item())
        load(optimizer, names, {name: self._of(name) for name in begun})
        return 0

    def end(self, place: int, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """As in the base class. TaskError for an entry that the declaration of the optimiser lacks."""
        for name, state in states_of(optimizer, names):
            for entry, value in {STEP: 1.0, **state}.items():  # an optimiser that counts no steps has the count 1
                home = self._arrays.get(name_of(entry, name))
                if home is None or (isinstance(value, torch.Tensor) and value.numel() != home.size):
                    raise TaskError(
                        f"the state of {type(optimizer).__name__} has an entry {entry!r} that its declaration lacks",
                        "update the package of the optimiser, or give --optimizer-state fresh",
                    )
                if not isinstance(value, torch.Tensor):
                    home[...] = value
                elif value.data_ptr() != (there := tensor_of(home)).data_ptr():
                    there.copy_(value.detach().reshape(there.shape))

    def _of(self, name: str) -> dict[str, torch.Tensor]:
        numbers = {entry: torch.tensor(self._arrays[name_of(entry, name)].item()) for entry in self._entries.numbers}
        alike = {entry: tensor_of(self._arrays[name_of(entry, name)]) for entry in self._entries.alike}
        return {**numbers, **alike}
