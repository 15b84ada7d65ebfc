"""Models whose weights could not travel are refused when a node starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp_node.clients import Clients
from fedgsp_node.model_check import check_model
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


def test_parameters_that_share_memory_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    module[2].weight = nn.Parameter(module[0].weight.detach().t())
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


@pytest.mark.parametrize("make", MODELS)
def test_usual_models_pass(make: type[nn.Module]) -> None:
    check_model(make())


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_node_does_not_start_with_such_a_model() -> None:
    class Lazy(Blobs):
        def model(self) -> nn.Module:
            return nn.LazyLinear(3)

    with pytest.raises(TaskError, match="has no shape yet"):
        Clients(Lazy(), None)
