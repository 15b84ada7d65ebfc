"""Modules and the buffers that travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights
from fedgsp_node.model.torch_weights import as_tensor, bind, bound, constants, digest, tensor_specs, unbind, weights_of
from tests.support.blobs_task import Blobs


class _Everything(nn.Module):
    """A parameter that the last dense layer shares, a frozen one, and buffers that belong to the state or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("scratch", torch.zeros(100), persistent=False)


def test_specs_name_parameters_once_then_the_buffers_of_the_state() -> None:
    assert tensor_specs(_Everything()) == (
        TensorSpec("first.weight", "float32", (3, 3), head=True),
        TensorSpec("count", "int64", (), trainable=False),
    )


def test_frozen_parameters_and_named_tensors_do_not_travel() -> None:
    assert list(constants(_Everything())) == ["first.bias"]
    assert list(constants(_Everything(), ("count",))) == ["first.bias", "count"]
    assert [spec.name for spec in tensor_specs(_Everything(), constant=("count",))] == ["first.weight"]
    module = _Everything()
    unbind(module)
    assert module.first.bias.stride() == (1,)
    assert module.first.weight.stride() == (0, 0)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("none.", "no tensor's name begins with the task's constant 'none.'"),
        ("first.w", "the task names the tensor 'first.weight' as constant, and training changes it"),
        ("second.", "the task names the tensor 'first.weight' as constant, and training changes it"),
    ],
)
def test_a_constant_that_is_none_is_told(named: str, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        tensor_specs(_Everything(), constant=(named,))


def test_a_frozen_model_cannot_be_trained() -> None:
    with pytest.raises(TaskError, match="the model has no trainable parameter") as caught:
        tensor_specs(nn.Linear(3, 2).requires_grad_(False))
    assert "requires_grad" in caught.value.remedy


def test_weights_are_a_copy_and_binding_them_restores_the_module() -> None:
    torch.manual_seed(0)
    module = Blobs().model()
    weights = weights_of(module)
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    bind(module, weights)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    assert weights.tensors == tensor_specs(module)


def test_a_module_bound_for_a_while_goes_back_to_what_it_was_bound_to_even_after_an_error() -> None:
    module: Any = Blobs().model()
    own, other = weights_of(module), weights_of(Blobs().model())
    bind(module, own)
    before = own.copy()

    def change() -> None:
        with bound(module, other):
            module[0].weight.data.fill_(3)
            module.train()(torch.randn(4, 6))  # counts a batch
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert np.array_equal(own.buffer, before.buffer)
    assert (other.arrays["0.weight"] == 3).all()
    assert other.arrays["1.num_batches_tracked"] == 1
    for name, tensor in module.state_dict().items():
        assert np.shares_memory(tensor.numpy(), own.arrays[name]), name


def test_what_a_bound_module_changes_the_buffer_shows() -> None:
    module: Any = Blobs().model()
    weights = weights_of(module)
    bind(module, weights)
    with torch.no_grad():
        module[0].weight.fill_(3)
    module.train()(torch.randn(4, 6))  # counts a batch
    assert (weights.arrays["0.weight"] == 3).all()
    assert weights.arrays["1.num_batches_tracked"] == 1


def test_a_shared_parameter_stays_shared() -> None:
    module = _Everything()
    weights = Weights.empty(tensor_specs(module))
    weights.buffer[:] = 0
    bind(module, weights)
    assert module.first.weight is module.second.weight
    assert float(module.second.weight.detach().abs().sum()) == 0


def test_binding_other_weights_leaves_the_first_as_they_were() -> None:
    module: Any = Blobs().model()
    first = weights_of(module)
    before = first.buffer.copy()
    bind(module, first)
    bind(module, first.copy())
    with torch.no_grad():
        module[0].weight.fill_(3)
    assert np.array_equal(first.buffer, before)


def test_a_dtype_that_cannot_travel_is_refused() -> None:
    phase = nn.Linear(2, 2)
    phase.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TaskError, match="tensor 'phase' has dtype complex64; use one of float16, float32"):
        tensor_specs(phase)


def test_a_layer_in_bfloat16_shares_its_memory_with_the_weights() -> None:
    module = nn.Linear(2, 2, dtype=torch.bfloat16)
    weights = weights_of(module)
    assert [spec.dtype for spec in weights.tensors] == ["bfloat16", "bfloat16"]
    assert len(weights.buffer) == 8 + 8  # two bytes a number, padded
    bind(module, weights)
    with torch.no_grad():
        module.weight.fill_(1 + 2**-7)
    assert (weights.arrays["weight"].astype(np.float64) == 1 + 2**-7).all()
    assert weights_of(module).digest == weights.copy().digest


def test_a_model_with_nothing_to_train_is_refused() -> None:
    for module in (nn.Sequential(nn.ReLU()), nn.Linear(2, 2).requires_grad_(False)):
        with pytest.raises(TaskError, match="no trainable parameter"):
            tensor_specs(module)


def test_arrays_become_tensors_over_the_same_memory_unless_they_are_read_only() -> None:
    array = np.zeros(3, np.float32)
    as_tensor(array)[0] = 1
    assert array[0] == 1
    array.flags.writeable = False
    as_tensor(array)[1] = 1
    assert array[1] == 0


def heads(module: torch.nn.Module, head: tuple[str, ...] = ()) -> list[str]:
    return [spec.name for spec in tensor_specs(module, head) if spec.head]


def test_the_head_is_the_last_dense_layer_unless_the_task_names_another() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert heads(model) == ["2.weight", "2.bias"]
    assert heads(model, ("0.",)) == ["0.weight", "0.bias"]
    assert heads(torch.nn.Linear(3, 2)) == ["weight", "bias"]
    assert heads(torch.nn.Conv2d(1, 2, 3)) == []


def test_a_tied_tensor_is_the_heads_if_any_of_its_names_is() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 5))
    model[2].weight = model[0].weight
    assert heads(model) == ["0.weight", "2.bias"]
    assert heads(model, ("2.weight",)) == ["0.weight"]
    assert heads(model, ("1.",)) == ["1.weight", "1.bias"]


def test_a_head_that_begins_no_tensors_name_is_refused() -> None:
    with pytest.raises(TaskError, match=r"no tensor's name begins with the task's head 'nosuch\.'"):
        tensor_specs(torch.nn.Linear(3, 2), ("nosuch.",))


def test_a_digest_tells_dtypes_and_shapes_apart() -> None:
    zeros = [torch.zeros(4), torch.zeros(2, dtype=torch.float64), torch.zeros(2, 2), torch.zeros(4)]
    assert len({digest(tensor) for tensor in zeros}) == 3
