"""What a training adds to the model of the task, and the features that it is added for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import Additions, Start, TensorSpec, Train, TrainingSettings
from fedgsp.tensors.weights import total_bytes
from fedgsp_node.clients import Clients
from fedgsp_node.rehearsal import features_of
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs
from tests.support.working import HERE, node


class Fused(Blobs):
    extractor = "2"


CONV = TensorSpec("fusion_weight", "float32", (8, 16)), TensorSpec("fusion_bias", "float32", (8,))
GAMMA = (TensorSpec("fusion_gamma", "float32", (8,)),)


def test_features_are_told_by_layer_dtype_and_channels() -> None:
    assert Clients(Fused(), None).features == TensorSpec("2", "float32", (8,))
    assert Clients(Blobs(), None).features is None


def test_a_wrong_extractor_is_logged_and_stops_only_what_needs_it(caplog: pytest.LogCaptureFixture) -> None:
    class Inherited(Fused):
        extractor = "6"

    with caplog.at_level("INFO"):
        assert Clients(Inherited(), None).features is None
    assert "the model has no layer '6', which the task names as `extractor`; name one of" in caplog.text


def test_features_may_have_any_dtype() -> None:
    maps = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(20, 2)).double()
    assert features_of(maps, "0", torch.zeros(1, 1, 4, 4).double()) == TensorSpec("0", "float64", (5,))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.LSTM(6, 8), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)[0]


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        ("conv9", "the model has no layer 'conv9', which the task names as `extractor`"),
        ("spare", "the model does not call the layer 'spare'"),
        ("used", "the layer 'used' returns no features, but tuple"),
    ],
)
def test_a_layer_without_features_is_refused(layer: str, what: str) -> None:
    with pytest.raises(TaskError, match=what):
        features_of(Pair(), layer, torch.zeros(1, 6))


def test_numbers_without_channels_are_no_features() -> None:
    with pytest.raises(TaskError, match=r"returns no features, but shape \(1,\)"):
        features_of(nn.Sequential(nn.Flatten(0)), "0", torch.zeros(1, 1))


@pytest.mark.parametrize(("operator", "tensors"), [("conv", CONV), ("multi", GAMMA)])
def test_the_model_is_that_of_the_task_with_further_tensors_behind_it(
    operator: str, tensors: tuple[TensorSpec, ...]
) -> None:
    clients, plain = Clients(Fused(), None), Clients(Blobs(), None)
    clients.extend(Additions("fedfusion", {"operator": operator}))
    assert clients.tensors == (*plain.tensors, *tensors)
    assert clients.task_tensors == plain.tensors
    extended, initial = clients.initial_weights(5), plain.initial_weights(5)
    assert extended.tensors == clients.tensors
    assert len(extended.buffer) == total_bytes(clients.tensors)
    for name, array in initial.arrays.items():
        assert np.array_equal(extended.arrays[name], array), name
    assert clients.initial_weights(5).digest == extended.digest != clients.initial_weights(6).digest
    clients.extend(None)
    assert clients.tensors == plain.tensors
    assert clients.initial_weights(5).digest == initial.digest


def test_a_training_that_adds_nothing_makes_no_other_model() -> None:
    made: list[nn.Module] = []

    class Counted(Fused):
        def model(self) -> nn.Module:
            made.append(super().model())
            return made[-1]

    clients = Clients(Counted(), None)
    clients.extend(Additions("sgd", {}))
    clients.extend(None)
    assert len(made) == 1


def test_gamma_does_not_change_what_a_model_is_evaluated_with() -> None:
    clients, plain = Clients(Fused(), None), Clients(Blobs(), None)
    clients.extend(Additions("fedfusion", {"operator": "single"}))
    weights = clients.initial_weights(0)
    weights.arrays["fusion_gamma"][...] = 0.7
    expected = plain.evaluate(1, plain.initial_weights(0), Control())
    assert clients.evaluate(1, weights, Control()) == expected


def test_without_features_or_with_a_tensor_of_that_name_nothing_is_added() -> None:
    class Taken(Fused):
        def model(self) -> nn.Module:
            module = super().model()
            module.register_parameter("fusion_bias", nn.Parameter(torch.zeros(3)))
            return module

    for task in (Blobs(), Taken()):
        clients = Clients(task, None)
        clients.extend(Additions("fedfusion", {}))
        assert clients.tensors == clients.task_tensors


def test_a_training_or_an_option_that_does_not_exist_is_refused() -> None:
    clients = Clients(Fused(), None)
    with pytest.raises(ConfigError, match="there is no training 'fusion'"):
        clients.extend(Additions("fusion", {}))
    with pytest.raises(ConfigError, match="option operator is 'sum'"):
        clients.extend(Additions("fedfusion", {"operator": "sum"}))


async def test_a_node_trains_and_hands_out_the_extended_model() -> None:
    how = TrainingSettings("fedfusion", 1, 7, 0.05, seed=3, options={"operator": "multi"})
    async with node(Fused()) as n:
        await n.worker.extend(Additions("fedfusion", dict(how.options)))
        n.worker.open("run")
        n.store.put("extended", n.clients.initial_weights(0))
        trained = await n.do(Train(Start("extended", HERE), "result", how))
        assert trained.ref.size == total_bytes(n.clients.tensors)
        result = await n.store.get("result")
        assert result.tensors == n.clients.tensors
        assert np.any(result.arrays["fusion_gamma"])
        await n.worker.extend(None)
        assert n.clients.tensors == n.clients.task_tensors
