"""The state of optimisers that travels with the model: each goes on with the bits of one that never ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import FailureCode
from fedgsp.optimizers import OPTIMIZERS, relayed_entries
from fedgsp.tensors.relayed_state import StateEntries, check_state, is_state, name_of, state_tensors, without_state
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp_node.kept.relayed_state import RelayedState
from fedgsp_node.model.torch_weights import bound, tensor_specs, weights_of
from tests.support.local_work import Mixed, Tied, mlp
from tests.support.optimising import made, names, steps
from tests.support.reference import as_numpy

torch.set_num_threads(1)

CASES: list[tuple[str, dict[str, str]]] = [
    ("sgd", {"momentum": "0.9"}),
    ("sgd", {"momentum": "0.9", "dampening": "0.5"}),
    ("sgd", {"momentum": "0.9", "nesterov": "true"}),
    ("adam", {}),
    ("adam", {"amsgrad": "true"}),
    ("adamw", {}),
    ("adamw", {"amsgrad": "true", "weight_decay": "0.1"}),
    ("nadam", {}),
    ("radam", {}),
    ("adamax", {}),
    ("adagrad", {"initial_accumulator_value": "0.5", "lr_decay": "0.1"}),
    ("adadelta", {}),
    ("rmsprop", {}),
    ("rmsprop", {"momentum": "0.9", "centered": "true"}),
    ("asgd", {"t0": "2"}),
    ("rprop", {}),
]


def with_state(module: nn.Module, entries: StateEntries) -> Weights:
    specs = tensor_specs(module)
    arrays = weights_of(module).arrays
    whole = (*specs, *state_tensors(entries, specs))
    return Weights.of({spec.name: arrays.get(spec.name, np.zeros(())) for spec in whole}, whole)


def trained(weights: Weights, module: nn.Module, name: str, given: dict[str, str], count: int) -> None:
    """Like a training on a node: a fresh optimiser, which begins from the state beside the model."""
    with bound(module, weights):
        optimizer, states = made(name, given, module), RelayedState(weights, relayed_entries(name, given))
        place = states.begin(optimizer, names(module))
        steps(module, optimizer, count)
        states.end(place, optimizer, names(module))


@pytest.mark.parametrize("make", [mlp, Tied, Mixed])
@pytest.mark.parametrize(("name", "given"), CASES)
def test_hops_have_the_bits_of_one_long_training(name: str, given: dict[str, str], make: Any) -> None:
    torch.manual_seed(1)
    once = make()
    weights = with_state(once, relayed_entries(name, given))
    for count in (1, 2, 3):
        there = Weights(weights.tensors, weights.buffer.copy())  # what another node receives
        trained(there, make(), name, given, count)
        weights = there
    optimizer = made(name, given, once)
    steps(once, optimizer, 6)
    for tensor, value in once.named_parameters():
        assert weights.arrays[tensor].tobytes() == as_numpy(value.detach()).tobytes()
    # Every entry that torch keeps travels, and no other one.
    for parameter, kept in optimizer.state.items():
        tensor = names(once)[id(parameter)]
        there_are = {entry for entry, value in kept.items() if value is not None} | {"step"}
        assert there_are == {spec.name.split("/")[1] for spec in weights.tensors if is_state(spec)}
        assert weights.arrays[name_of("step", tensor)].item() == float(kept.get("step", 1))


def test_every_optimiser_that_says_its_state_is_tried() -> None:
    said = {name for name in OPTIMIZERS.built_in if OPTIMIZERS[name].state(OPTIMIZERS[name].read({})) is not None}
    assert said == {name for name, _ in CASES}
    with pytest.raises(ConfigError, match="the state of optimizer adafactor cannot travel with the model"):
        relayed_entries("adafactor", {})


class Branches(nn.Module):
    """Two layers, of which a training uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(10, 4), nn.Linear(10, 4)
        self.first = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x) if self.first else self.unused(x)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_parameter_without_a_gradient_has_no_state_until_it_gets_one(name: str, given: dict[str, str]) -> None:
    torch.manual_seed(1)
    first, second, once = Branches(), Branches(), Branches()
    first.load_state_dict(once.state_dict())
    weights = with_state(first, relayed_entries(name, given))
    trained(weights, first, name, given, 2)
    second.first = False
    trained(weights, second, name, given, 2)
    optimizer = made(name, given, once)
    steps(once, optimizer, 2)
    once.first = False
    steps(once, optimizer, 2)
    for tensor, value in once.named_parameters():
        assert weights.arrays[tensor].tobytes() == as_numpy(value.detach()).tobytes()


def test_on_the_cpu_the_optimiser_changes_the_memory_that_travels() -> None:
    module = mlp()
    weights = with_state(module, relayed_entries("adamw", {}))
    trained(weights, module, "adamw", {}, 1)
    with bound(module, weights):
        optimizer = made("adamw", {}, module)
        RelayedState(weights, relayed_entries("adamw", {})).begin(optimizer, names(module))
        for parameter, kept in optimizer.state.items():
            home = weights.arrays[name_of("exp_avg_sq", names(module)[id(parameter)])]
            assert kept["exp_avg_sq"].data_ptr() == home.ctypes.data


def test_the_state_of_a_head_belongs_to_the_head_and_is_never_trainable() -> None:
    specs = tensor_specs(mlp())
    state = state_tensors(StateEntries(("exp_avg",), ("step",)), specs)
    assert {spec.name for spec in state if spec.head} == {
        f"optimizer/{entry}/{spec.name}" for entry in ("step", "exp_avg") for spec in specs if spec.head
    }
    assert not any(spec.trainable for spec in state)
    assert without_state((*specs, *state)) == specs
    assert {spec.dtype for spec in state} == {"float64", "float32"}


def test_a_model_without_state_and_an_entry_that_is_not_declared_are_told() -> None:
    module = mlp()
    weights = weights_of(module)
    with pytest.raises(TaskError, match=r"the model came without the state of '0[.]weight'"):
        RelayedState(weights, relayed_entries("adam", {})).begin(made("adam", {}, module), names(module))
    lacking = with_state(module, StateEntries(("exp_avg",), ("step",)))
    states, optimizer = RelayedState(lacking, StateEntries(("exp_avg",), ("step",))), made("adam", {}, module)
    steps(module, optimizer, 1)
    with pytest.raises(TaskError, match="the state of Adam has an entry 'exp_avg_sq' that its declaration lacks"):
        states.end(0, optimizer, names(module))


@pytest.mark.parametrize("entry", ["step", "exp_avg_sq"])
def test_a_negative_count_or_mean_square_is_refused(entry: str) -> None:
    weights = with_state(mlp(), relayed_entries("adam", {}))
    weights.arrays[name_of("exp_avg", "0.weight")][...] = -1.0
    check_state(weights)
    weights.arrays[name_of(entry, "0.weight")].reshape(-1)[-1] = -1e-9
    with pytest.raises(WeightsError, match=f"tensor 'optimizer/{entry}/0.weight' holds negative values") as caught:
        check_state(weights)
    assert caught.value.failure.code is FailureCode.NOT_FINITE
