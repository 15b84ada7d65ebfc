"""The state of optimisers as it is kept: every built-in one goes on from it with the bits of one that never ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.optimizers import OPTIMIZERS
from fedgsp_node.kept.optimizer_state import KeptStates
from tests.support.local_work import Mixed, Tied, mlp
from tests.support.optimising import made as optimiser
from tests.support.optimising import names, steps
from tests.support.reference import as_numpy

torch.set_num_threads(1)


def made(name: str, module: nn.Module) -> torch.optim.Optimizer:
    """An optimiser that has a state: SGD has one with a momentum."""
    return optimiser(name, {"momentum": "0.9"} if name == "sgd" else {}, module)


def values(module: nn.Module) -> bytes:
    return b"".join(as_numpy(tensor.detach()).tobytes() for tensor in module.state_dict().values())


@pytest.mark.parametrize("make", [mlp, Tied, Mixed])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.built_in if name != "auto"])
def test_an_optimiser_goes_on_as_if_it_had_never_ended(name: str, make: Any) -> None:
    torch.manual_seed(1)
    once, again = make(), make()
    again.load_state_dict(once.state_dict())
    steps(once, made(name, once), 6)
    kept: dict[str, np.ndarray] | None = None
    for _ in range(3):
        states, optimizer = KeptStates(kept), made(name, again)
        place = states.begin(optimizer, names(again))
        steps(again, optimizer, 2)
        states.end(place, optimizer, names(again))
        kept = states.arrays
    assert values(again) == values(once)
    assert kept


def test_two_optimisers_of_a_training_do_not_share_their_states() -> None:
    module, other = mlp(), mlp()
    states = KeptStates()
    for one, count in ((module, 1), (other, 4)):
        optimizer = made("adam", one)
        place = states.begin(optimizer, names(one))
        steps(one, optimizer, count)
        states.end(place, optimizer, names(one))
    again = KeptStates(states.arrays)
    counts = []
    for one in (module, other):
        optimizer = made("adam", one)
        again.begin(optimizer, names(one))
        counts.append({float(state["step"]) for state in optimizer.state.values()})
    assert counts == [{1.0}, {4.0}]


def test_what_was_kept_is_not_changed_by_the_next_training() -> None:
    module, states = mlp(), KeptStates()
    optimizer = made("adam", module)
    steps(module, optimizer, 1)
    states.end(states.begin(made("adam", module), names(module)), optimizer, names(module))
    before = {name: array.copy() for name, array in states.arrays.items()}
    again = made("adam", module)
    KeptStates(states.arrays).begin(again, names(module))
    steps(module, again, 3)
    assert all(np.array_equal(array, before[name]) for name, array in states.arrays.items())


class Odd(torch.optim.SGD):
    """Keeps a list, and a number of Python."""

    entry: Any = 3

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["odd"] = self.entry


@pytest.mark.parametrize("entry", [3, 0.5, True])
def test_numbers_stay_numbers(entry: Any) -> None:
    module, states = mlp(), KeptStates()
    optimizer = Odd(module.parameters(), lr=0.1)
    optimizer.entry = entry
    steps(module, optimizer, 1)
    states.end(0, optimizer, names(module))
    again = Odd(module.parameters(), lr=0.1)
    KeptStates(states.arrays).begin(again, names(module))
    found = again.state[next(module.parameters())]["odd"]
    assert found == entry
    assert type(found) is type(entry)


def test_an_entry_that_cannot_be_kept_is_told() -> None:
    module, states = mlp(), KeptStates()
    optimizer = Odd(module.parameters(), lr=0.1)
    optimizer.entry = [1, 2]
    steps(module, optimizer, 1)
    with pytest.raises(TaskError, match="the state of Odd has an entry 'odd' of type list, which cannot be kept"):
        states.end(0, optimizer, names(module))


def test_an_optimiser_does_not_go_on_from_the_state_of_another_kind() -> None:
    module, states = mlp(), KeptStates()
    optimizer = made("adam", module)
    steps(module, optimizer, 1)
    states.end(0, optimizer, names(module))
    other, again = made("rmsprop", module), KeptStates(states.arrays)
    again.begin(other, names(module))
    assert again.anew
    assert not other.state
    steps(module, other, 1)


def test_a_parameter_that_is_not_the_models_is_told() -> None:
    module, states = mlp(), KeptStates()
    stray = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([*module.parameters(), stray], lr=0.1)
    stray.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(TaskError, match=r"Adam steps a parameter of shape \(3,\) that is not the model's"):
        states.end(0, optimizer, names(module))


class Elsewhere(torch.optim.SGD):
    """Remembers the last gradients, but not in its state."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.last = [one.grad for group in self.param_groups for one in group["params"]]
        super().step()


def test_what_an_optimiser_remembers_outside_of_its_state_is_not_lost_silently() -> None:
    module = mlp()
    optimizer, states = Elsewhere(module.parameters(), 0.01), KeptStates()
    place = states.begin(optimizer, names(module))
    steps(module, optimizer, 1)
    with pytest.raises(TaskError, match=r"Elsewhere has nothing in its `state`, so nothing of it can be kept; let it"):
        states.end(place, optimizer, names(module))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimiser_of_torch_needs_no_state(momentum: float) -> None:
    module = mlp()
    optimizer, states = torch.optim.SGD(module.parameters(), 0.01, momentum), KeptStates()
    place = states.begin(optimizer, names(module))
    steps(module, optimizer, 1)
    states.end(place, optimizer, names(module))
    assert bool(states.arrays) == bool(momentum)
