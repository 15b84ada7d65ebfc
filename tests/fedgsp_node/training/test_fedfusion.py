"""FedFusion: its operators and their gradients, the fused module, and what the frozen stream leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import OptimizerSettings, TensorSpec
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import TRAININGS, FedFusionOptions, added
from fedgsp_node.model.torch_weights import placed, swapped, weights_of
from fedgsp_node.optimizers import stepping
from fedgsp_node.training.base import LocalWork
from fedgsp_node.training.fedfusion import Fusion, convolved, extend, weighted
from tests.support.local_work import (
    MODELS,
    PRECISIONS,
    CrossEntropy,
    attention,
    convolutions,
    local_work,
    mlp,
    samples,
    settings,
)
from tests.support.trainings import ALGORITHMS

torch.set_num_threads(1)

OPERATORS = ("conv", "multi", "single")


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


#: Maps of shape (1, 2, 2, 2).
OURS = tensor([[[[1, 2], [3, 4]], [[0, -1], [1, 0.5]]]])
THEIRS = tensor([[[[3, 2], [1, 0]], [[2, 1], [1, -0.5]]]])
WEIGHT, BIAS = tensor([[0.5, 0, 0.5, 0], [0.1, 0.2, 0.3, 0.4]]), tensor([0, 0.1])


def test_maps_are_fused_by_one_gamma_a_gamma_per_channel_or_a_convolution() -> None:
    single = [[[[1.5, 2], [2.5, 3]], [[0.5, -0.5], [1, 0.25]]]]
    multi = [[[[1.5, 2], [2.5, 3]], [[1.5, 0.5], [1, -0.25]]]]
    conv = [[[[2, 2], [2, 2]], [[1.9, 1.1], [1.3, 0.4]]]]
    torch.testing.assert_close(weighted(OURS, THEIRS, tensor([0.25])), tensor(single))
    torch.testing.assert_close(weighted(OURS, THEIRS, tensor([0.25, 0.75])), tensor(multi))
    torch.testing.assert_close(convolved(OURS, THEIRS, WEIGHT, BIAS), tensor(conv))


def test_the_gradient_of_gamma_is_the_sum_of_the_differences() -> None:
    for gamma, expected in (([0.25, 0.75], [-4, 3]), ([0.25], [-1])):
        parameter = tensor(gamma).requires_grad_()
        weighted(OURS, THEIRS, parameter).sum().backward()
        torch.testing.assert_close(parameter.grad, tensor(expected))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
def test_every_number_of_dimensions_is_fused_channel_by_channel(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ours, theirs = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    weight, bias, gamma = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 6), (3,), (3,)))
    letters = "xyz"[: len(shape) - 2]
    product = torch.einsum(f"oc,bc{letters}->bo{letters}", weight, torch.cat([ours, theirs], 1))
    shift = bias.view(-1, *[1] * len(letters))
    torch.testing.assert_close(convolved(ours, theirs, weight, bias), product + shift)
    share = gamma.view(-1, *[1] * len(letters))
    torch.testing.assert_close(weighted(ours, theirs, gamma), share * theirs + (1 - share) * ours)
    torch.autograd.gradcheck(convolved, (ours, theirs, weight, bias))
    torch.autograd.gradcheck(weighted, (ours, theirs, gamma))
    torch.autograd.gradcheck(weighted, (ours, theirs, gamma[:1]))


class Given(nn.Module):
    """1x1 maps that are parameters, and a classifier without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Parameter(tensor([[1, 2], [0.5, -1]]))
        self.extractor = nn.Identity()
        self.classifier = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        self.classifier.weight.data = tensor([[1, -1], [0.5, 2]])

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.extractor(self.maps[:, :, None, None])
        return self.classifier(features.flatten(1))


@pytest.mark.parametrize(
    ("operator", "values", "features", "loss", "gradients"),
    [
        (
            "multi",
            {"fusion_gamma": [0.25, 0.75]},
            [[1.25, 0.5], [0.625, 0.5]],
            0.744817208819855,
            {
                "fusion_gamma": [-0.14723296, -2.81847415],
                "maps": [[-0.13233469, 0.26466939], [0.04381994, -0.08763988]],
            },
        ),
        (
            "single",
            {"fusion_gamma": [0.25]},
            [[1.25, 1.5], [0.625, -0.5]],
            2.9296279274352495,
            {"fusion_gamma": [-5.655453134]},
        ),
        (
            "conv",
            {"fusion_weight": WEIGHT.tolist(), "fusion_bias": BIAS.tolist()},
            [[1.5, 1.2], [0.75, 0.65]],
            1.5471886886868822,
            {
                "fusion_weight": [
                    [-0.21489157, -0.51553553, -0.42978315, 0.04287619],
                    [1.28934945, 3.0932132, 2.57869889, -0.25725715],
                ]
            },
        ),
    ],
)
def test_the_loss_and_the_gradients_of_a_fused_model(
    operator: str, values: dict[str, Any], features: list[list[float]], loss: float, gradients: dict[str, Any]
) -> None:
    module = Given()
    fusion = extend(module, TensorSpec("extractor", "float64", (2,)), FedFusionOptions(operator))
    for name, value in values.items():
        module.get_parameter(name).data = tensor(value)
    given: list[torch.Tensor] = []
    module.classifier.register_forward_pre_hook(lambda _layer, inputs: given.append(inputs[0]))
    with fusion.beside(tensor([[2, 0], [1, 1]])[:, :, None, None]):
        found = nn.functional.cross_entropy(module(torch.zeros(2)), torch.tensor([0, 1]))
    found.backward()
    torch.testing.assert_close(given[0], tensor(features))
    assert found.item() == pytest.approx(loss, abs=1e-14)
    for name, expected in gradients.items():
        torch.testing.assert_close(module.get_parameter(name).grad, tensor(expected), rtol=0, atol=6e-9)


# -- the fused module


def features_spec(module: nn.Module, layer: str, channels: int) -> TensorSpec:
    return TensorSpec(layer, str(next(module.parameters()).dtype).removeprefix("torch."), (channels,))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("make", "layer", "channels"), [(mlp, "1", 16), (convolutions, "2", 3)])
def test_a_module_gets_the_tensors_that_are_declared(
    make: Callable[[], nn.Module], layer: str, channels: int, operator: str
) -> None:
    for module in (make(), make().double()):
        before, spec = weights_of(module).tensors, features_spec(module, layer, channels)
        extend(module, spec, FedFusionOptions(operator))
        declared = added("fedfusion", {"operator": operator}, spec)
        assert {*weights_of(module).tensors} == {*before, *declared}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("make", "layer", "channels"), [(mlp, "1", 16), (convolutions, "2", 3)])
def test_a_module_that_looks_back_gets_a_buffer_for_each_tensor_of_the_model(
    make: Callable[[], nn.Module], layer: str, channels: int, operator: str
) -> None:
    module, options = make(), {"operator": operator, "evaluation": "previous"}
    before, spec = weights_of(module), features_spec(module, layer, channels)
    extend(module, spec, FedFusionOptions(**options), before.tensors)
    declared, found = added("fedfusion", options, spec, before.tensors), weights_of(module)
    assert {*found.tensors} == {*before.tensors, *declared}
    for number, one in enumerate(before.tensors):
        assert np.array_equal(found.arrays[f"fusion_previous_{number}"], before.arrays[one.name])


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_numbers_of_parameters_of_leafs_model(operator: str) -> None:
    declared = added("fedfusion", {"operator": operator}, TensorSpec("5", "float32", (64,)))
    extra = sum(torch.Size(spec.shape).numel() for spec in declared)
    assert extra == {"conv": 8256, "multi": 64, "single": 1}[operator]
    assert 6_603_710 + extra == {"conv": 6_611_966, "multi": 6_603_774, "single": 6_603_711}[operator]


def test_a_convolution_begins_as_torch_begins_one_and_gamma_at_0() -> None:
    module = convolutions()
    torch.manual_seed(5)
    extend(module, features_spec(module, "2", 3), FedFusionOptions())
    torch.manual_seed(5)
    made = nn.Conv2d(6, 3, 1)
    assert made.bias is not None
    assert torch.equal(module.get_parameter("fusion_weight"), made.weight[:, :, 0, 0])
    assert torch.equal(module.get_parameter("fusion_bias"), made.bias)
    other = convolutions()
    extend(other, features_spec(other, "2", 3), FedFusionOptions("multi"))
    assert other.get_parameter("fusion_gamma").tolist() == [0, 0, 0]


@pytest.mark.parametrize("operator", ["multi", "single"])
@pytest.mark.parametrize(("make", "layer", "channels"), [(mlp, "1", 16), (convolutions, "2", 3)])
def test_without_others_features_a_gamma_changes_no_bit(
    make: Callable[[], nn.Module], layer: str, channels: int, operator: str
) -> None:
    module, (x, _) = make(), samples(9)
    expected = module(x)
    extend(module, features_spec(module, layer, channels), FedFusionOptions(operator))
    with torch.no_grad():
        module.get_parameter("fusion_gamma").fill_(0.37)
    assert torch.equal(module(x), expected)


def test_without_others_features_a_convolution_fuses_the_features_with_themselves() -> None:
    module, (x, _) = convolutions(), samples(9)
    extend(module, features_spec(module, "2", 3), FedFusionOptions())
    features = module[:2](x).relu()  # type: ignore[index]
    weight, bias = module.get_parameter("fusion_weight"), module.get_parameter("fusion_bias")
    fused = torch.einsum("oc,bct->bot", weight[:, :3] + weight[:, 3:], features) + bias[:, None]
    torch.testing.assert_close(module(x), module[3:](fused))  # type: ignore[index]


def test_features_are_read_without_the_rest_of_the_module() -> None:
    module, (x, _) = convolutions(), samples(4)
    fusion = extend(module, features_spec(module, "2", 3), FedFusionOptions())
    reached: list[nn.Module] = []
    module.get_submodule("4").register_forward_hook(lambda layer, *_: reached.append(layer))
    assert torch.equal(fusion.features(x), module[:2](x).relu())  # type: ignore[index]
    assert not reached
    module(x)
    assert reached


def test_a_layer_that_is_not_called_has_no_features() -> None:
    module = nn.Sequential(nn.Linear(10, 4))
    module.spare = nn.Linear(10, 4)
    module.forward = lambda x: module[0](x)  # type: ignore[method-assign]
    with pytest.raises(TaskError, match="does not call the layer that the task names as `extractor`"):
        Fusion(module, "spare").features(samples(2)[0])


# -- whole trainings


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("operator", ["multi", "single"])
@pytest.mark.parametrize("make", [mlp, convolutions, attention])
def test_the_first_batch_of_the_first_round_has_the_loss_and_the_step_of_fedavg(
    make: Callable[[], nn.Module], operator: str, precision: str
) -> None:
    found = []
    for algorithm, options in (("sgd", {}), ("fedfusion", {"operator": operator})):
        torch.manual_seed(1)
        work, trained = local_work(
            make(),
            CrossEntropy(),
            samples(5),
            settings(1, 5, 0.05, algorithm, options),  # type: ignore[arg-type]
        )
        work.stepping = stepping(OptimizerSettings("auto", precision=precision), work.task)
        result = ALGORITHMS[algorithm].train(work)
        found.append((result, {n: a.tobytes() for n, a in trained.arrays.items() if not n.startswith("fusion_")}))
        assert not any(
            trained.arrays[n].any() for n in trained.arrays if n.startswith("fusion_")
        )  # features are equal
    assert found[0] == found[1]


def learnt(make: Callable[[], nn.Module], operator: str, evaluation: str = "own") -> tuple[LocalWork, Weights]:
    torch.manual_seed(1)
    options = {"operator": operator, "evaluation": evaluation}
    how = settings(3, 5, 0.2, "fedfusion", options)  # type: ignore[arg-type]
    work, trained = local_work(make(), CrossEntropy(), samples(23), how)
    ALGORITHMS["fedfusion"].train(work)
    return work, trained


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("make", MODELS)
def test_extractor_fusion_and_classifier_learn(make: Callable[[], nn.Module], operator: str) -> None:
    work, trained = learnt(make, operator)
    for spec in trained.tensors:
        if spec.trainable and not spec.name.startswith("unused"):
            assert (trained.arrays[spec.name] != work.received.arrays[spec.name]).any(), spec.name


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("make", MODELS)
def test_an_evaluation_may_fuse_features_with_those_of_the_received_model(
    make: Callable[[], nn.Module], operator: str
) -> None:
    (work, trained), (_, expected) = learnt(make, operator, "previous"), learnt(make, operator)
    for name, array in expected.arrays.items():  # training is the same
        assert np.array_equal(trained.arrays[name], array), name
    for number, spec in enumerate(s for s in expected.tensors if not s.name.startswith("fusion_")):
        copied = trained.arrays[f"fusion_previous_{number}"]
        assert np.array_equal(copied, work.received.arrays[spec.name]), spec.name
    fusion, module, (x, _) = work.added, work.module.eval(), samples(9)
    received = placed(module, work.received)
    with torch.no_grad():
        with swapped(module, received):
            theirs = fusion.features(x)
        with fusion.beside(theirs):
            beside = module(x)
        assert torch.equal(module(x), beside)
        assert torch.equal(module(x), beside)  # nothing remains of a pass
        assert not torch.equal(fusion.features(x), theirs)


def test_gamma_is_not_bounded() -> None:
    gamma = np.asarray(learnt(mlp, "multi")[1].arrays["fusion_gamma"], np.float64)
    assert ((gamma < 0) | (gamma > 1)).any()


def test_a_model_without_a_fusion_is_not_trained() -> None:
    work, _ = local_work(mlp(), CrossEntropy(), samples(5), settings())
    with pytest.raises(TaskError, match="has no fusion"):
        ALGORITHMS["fedfusion"].train(work)


def test_the_default_is_the_convolution() -> None:
    assert TRAININGS["fedfusion"].read({}) == FedFusionOptions("conv")
    assert added("sgd", {}, TensorSpec("5", "float32", (64,))) == ()
    assert added("fedfusion", {}, None) == ()
    assert [name for name, training in TRAININGS.built_in.items() if training.adds] == ["fedfusion"]
    assert [name for name, algorithm in ALGORITHMS.items() if algorithm.extend] == ["fedfusion"]
