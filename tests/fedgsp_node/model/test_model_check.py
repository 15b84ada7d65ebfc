"""A node refuses models with weights that cannot be sent, when it starts."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp_node.clients import Clients
from fedgsp_node.model.model_check import check_model
from tests.support.blobs_task import Blobs
from tests.support.local_work import MODELS


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(3), lambda: nn.LazyBatchNorm1d(affine=False)])
def test_a_lazy_layer_is_refused_by_name_until_it_has_seen_a_batch(make: type[nn.Module]) -> None:
    module = nn.Sequential(nn.Linear(6, 4), make())
    with pytest.raises(TaskError, match=r"layer '1' \(Lazy.* has no shape yet.*run one batch"):
        check_model(module)
    module(torch.randn(2, 6))
    check_model(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda layer: torch.jit.trace(layer, torch.ones(1, 6))])
def test_a_layer_that_is_compiled_by_torch_jit_is_refused_by_name(compiled: Callable[[nn.Module], nn.Module]) -> None:
    module = nn.Sequential(compiled(nn.Linear(6, 3)))
    with pytest.raises(TaskError, match=r"layer '0' \(.*\) is compiled by torch.jit.*return the nn.Module itself"):
        check_model(module)


def test_parameters_that_share_memory_are_refused_by_name() -> None:
    first, _, last = layers = [nn.Linear(4, 4) for _ in range(3)]
    last.weight = nn.Parameter(first.weight.detach().t())
    module = nn.Sequential(*layers)
    with pytest.raises(TaskError, match=r"'0\.weight' and '2\.weight' share memory"):
        check_model(module)
    module[2].weight = module[0].weight
    check_model(module)


def test_parts_of_one_tensor_that_do_not_overlap_may_be_parameters() -> None:
    module, flat = nn.Linear(2, 2), torch.randn(6)
    module.weight, module.bias = nn.Parameter(flat[:4].view(2, 2)), nn.Parameter(flat[4:])
    check_model(module)


def test_a_state_that_is_no_tensor_is_refused_by_its_layer() -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> object:
            return {"calls": 3}

    with pytest.raises(TaskError, match=r"layer '1' \(Counting\) has an extra state.*in a buffer"):
        check_model(nn.Sequential(nn.Linear(2, 2), Counting(2, 2)))


def test_a_name_that_cannot_be_sent_is_refused_with_the_rule() -> None:
    module = nn.Sequential()
    module.add_module("two\nlines", nn.Linear(2, 2))
    with pytest.raises(TaskError, match=r"'two\\nlines\.weight' has a name that cannot be sent; rename its layer"):
        check_model(module)


def test_a_buffer_that_is_a_view_of_a_parameter_is_refused_by_both_names() -> None:
    module = nn.Linear(4, 4)
    module.register_buffer("kept", module.weight.detach()[1:])
    with pytest.raises(TaskError, match="buffer 'kept' shares memory with its parameter 'weight'"):
        check_model(module)
    module.kept = module.weight.detach().clone()
    check_model(module)


def test_an_attribute_that_is_a_view_of_a_parameter_is_refused_by_both_names() -> None:
    layer = nn.Linear(4, 4)
    module = nn.Sequential(layer)
    vars(layer)["turned"] = layer.weight.t()
    with pytest.raises(TaskError, match=r"attribute '0\.turned' shares memory with its parameter '0\.weight'"):
        check_model(module)
    vars(layer)["turned"] = layer.weight  # the parameter itself follows
    check_model(module)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_an_attribute_that_is_computed_before_each_call_passes(norm: Callable[[nn.Module], nn.Module]) -> None:
    check_model(norm(nn.Linear(4, 4)))


@pytest.mark.parametrize("part", [False, True])
def test_a_model_that_the_task_keeps_is_refused_and_its_copy_taken(part: bool) -> None:
    class Keeps(Blobs):
        def __init__(self) -> None:
            super().__init__()
            self.kept, self.copied = super().model(), False

        def model(self) -> nn.Module:
            mine = copy.deepcopy(self.kept) if self.copied else self.kept
            return nn.Sequential(nn.Linear(6, 6), mine) if part else mine

    task = Keeps()
    with pytest.raises(TaskError, match=r"the same tensor '.*weight' twice.*copy\.deepcopy\(\)"):
        Clients(task, None).rehearse()
    task.kept, task.copied = Blobs().model(), True
    clients = Clients(task, None)
    clients.rehearse()
    fresh = clients.initial_weights(0).arrays
    assert all(array.any() for name, array in fresh.items() if name.endswith("weight"))


def test_a_frozen_part_that_the_task_keeps_may_be_the_same() -> None:
    backbone = nn.Linear(6, 6).requires_grad_(False)

    class Keeps(Blobs):
        def model(self) -> nn.Module:
            return nn.Sequential(backbone, nn.Linear(6, 3))

    clients = Clients(Keeps(), None)
    clients.rehearse()
    clients.make_constants(0)
    assert backbone.weight.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_first_values_that_are_no_numbers_are_refused_where_they_travel(value: float) -> None:
    def task_with(persistent: bool) -> Blobs:
        class Masked(nn.Linear):
            def __init__(self, inputs: int) -> None:
                super().__init__(inputs, 3)
                self.register_buffer("mask", torch.full((2,), value), persistent=persistent)

        task = Blobs()
        task.model = lambda: Masked(task.data(0).train.x.shape[1])  # type: ignore[method-assign]
        return task

    with pytest.raises(TaskError, match=r"'mask' holds NaN or infinite values; initialise it.*persistent=False"):
        Clients(task_with(True), None)
    Clients(task_with(False), None)


class Holding(nn.Module):
    """A layer with one more tensor, as a parameter or as a buffer."""

    def __init__(self, extra: torch.Tensor, trains: bool = False) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)
        if trains:
            self.extra = nn.Parameter(extra)
        else:
            self.register_buffer("extra", extra)


def test_a_model_on_device_meta_is_refused_with_the_device_and_the_remedy() -> None:
    with pytest.raises(
        TaskError, match=r"'1\.weight' is on device meta and has no values; build the model without device='meta'"
    ):
        check_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta")))
    with pytest.raises(TaskError, match="'extra' is on device meta"):
        check_model(Holding(torch.zeros(3, device="meta")))
    module = nn.Linear(4, 4, device="meta").to_empty(device="cpu")
    check_model(module)


@pytest.mark.filterwarnings("ignore:.*(sparse csr|nested tensors):UserWarning")
@pytest.mark.parametrize("trains", [True, False], ids=["parameter", "buffer"])
@pytest.mark.parametrize(
    ("make", "layout"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested"),
    ],
)
def test_a_tensor_that_is_not_dense_is_refused_with_its_layout(
    make: Callable[[], torch.Tensor], layout: str, trains: bool
) -> None:
    with pytest.raises(TaskError, match=rf"'extra' has the layout {layout}; store it as a dense tensor"):
        check_model(Holding(make(), trains))


def task_of(make: Callable[[], nn.Module]) -> Blobs:
    class Odd(Blobs):
        def model(self) -> nn.Module:
            return make()

    return Odd()


def test_complex_numbers_are_refused_with_the_dtypes_that_can_be_sent() -> None:
    with pytest.raises(TaskError, match="'extra' has dtype complex64; use one of float16"):
        Clients(task_of(lambda: Holding(torch.zeros(3, dtype=torch.complex64), trains=True)), None)


def test_a_model_on_a_gpu_is_refused_by_its_device_or_because_there_is_none() -> None:
    refused = r"'weight' is on device cuda:0; return the model on the CPU"
    raised = r"the task's model\(\) raised .*(CUDA|NVIDIA).*test_model_check\.py"
    with pytest.raises(TaskError, match=refused if torch.cuda.is_available() else raised):
        Clients(task_of(lambda: nn.Linear(6, 3, device="cuda")), None)


@pytest.mark.parametrize("make", MODELS)
def test_usual_models_pass(make: type[nn.Module]) -> None:
    check_model(make())


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_node_does_not_start_with_such_a_model() -> None:
    with pytest.raises(TaskError, match="has no shape yet"):
        Clients(task_of(lambda: nn.LazyLinear(3)), None)
