"""Devices: which one is chosen, that everything goes there, and what is told when its memory is full.

There is no GPU here. Placement is a value, and is tested with the CPU and with torch's device `meta`, which has shapes
and no values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import Additions, OptimizerSettings, TrainingSettings
from fedgsp_node import devices
from fedgsp_node.clients import Clients
from fedgsp_node.devices import CPU, described, device_of
from fedgsp_node.model.torch_weights import bound, weights_of
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.local_work import convolutions, norm_and_dropout
from tests.support.trainings import ALGORITHMS

META = torch.device("meta")
SETTINGS = TrainingSettings("sgd", 1, 4, 0.1, seed=0)


class _SeenError(Exception):
    """Ends a training where a value is needed that `meta` does not have."""


class Placed(Task):
    """Notes where everything is that its loss gets, and ends there."""

    num_classes, num_clients, extractor = 4, 1, "0"
    ends = True

    def __init__(self) -> None:
        self.seen: list[str] = []

    def model(self) -> nn.Module:
        module = norm_and_dropout()
        module[0].weight.requires_grad_(False)  # type: ignore[index]
        return module

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        part = Split(rng.standard_normal((8, 10)).astype(np.float32), rng.integers(0, 4, 8))
        return ClientData(part, part)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.seen += [outputs.device.type, targets.device.type]
        if outputs.device == META and self.ends:
            raise _SeenError
        return super().loss(outputs, targets)


def hosted(device: torch.device, task: Task | None = None) -> tuple[Any, Clients]:
    task = task or Placed()
    return task, Clients(task, None, device=device)


def everything(clients: Clients) -> set[str]:
    module = clients._module
    tensors = [
        *module.parameters(),
        *module.buffers(),
        *(buffer for buffer in clients._unsaved.buffers.values() if buffer is not None),
        *clients._constants._tensors.values(),
    ]
    return {tensor.device.type for tensor in tensors}


@pytest.mark.parametrize("device", [CPU, META])
def test_the_model_its_buffers_and_its_constants_are_on_the_device(device: torch.device) -> None:
    _, clients = hosted(device)
    assert everything(clients) == {device.type}
    clients.extend(Additions("fedfusion"))
    assert everything(clients) == {device.type}
    # What travels comes from the CPU, and goes there.
    assert all(isinstance(array, np.ndarray) for array in clients.initial_weights(0).arrays.values())


@pytest.mark.parametrize("algorithm", ["sgd", "fedprox", "fedmmd", "ditto", "pfedme", "per-fedavg", "finetune"])
def test_batches_labels_and_anchors_go_to_the_device(algorithm: str) -> None:
    task, clients = hosted(META)
    with pytest.raises(OrderError):
        clients.train(0, clients.initial_weights(0), TrainingSettings(algorithm, 1, 4, 0.1, seed=0), 1, Control())
    assert set(task.seen) == {"meta"}
    with pytest.raises(OrderError):
        clients.evaluate(0, clients.initial_weights(0), Control())
    assert set(task.seen) == {"meta"}
    assert {tensor.device.type for tensor in clients._module.parameters()} == {"meta"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_training_on_the_cpu_by_name_has_the_bits_of_one_without(algorithm: str) -> None:
    digests = []
    for clients in (Clients(Placed(), None), Clients(Placed(), None, device=torch.device("cpu:0"))):
        if algorithm == "fedfusion":
            clients.extend(Additions("fedfusion"))
        learned = clients.train(
            0, clients.initial_weights(0), TrainingSettings(algorithm, 1, 4, 0.1, seed=0), 1, Control()
        )
        digests.append(learned.after.digest)
    assert digests[0] == digests[1]


def test_the_weights_of_another_device_come_back() -> None:
    """The module's own tensors stand for those of a GPU: they share no memory with the weights."""
    module = convolutions()
    weights = weights_of(module)
    before = weights.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedgsp_node.model.torch_weights.placed", _copies)
        with bound(module, weights):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(1)
            assert weights.copy().digest == before.digest
    for name, array in weights.arrays.items():
        assert np.allclose(np.subtract(array, before.arrays[name], dtype=np.float32), 1)


def _copies(module: nn.Module, weights: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in weights.arrays.items()}


@pytest.mark.parametrize(
    ("gpus", "text", "expected"),
    [
        (0, "auto", "cpu"),
        (0, "auto:3", "cpu"),
        (0, "cpu", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "auto:3", "cuda:1"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
        (2, "cpu", "cpu"),
    ],
)
def test_which_device_is_taken(gpus: int, text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert str(device_of(text)) == expected


@pytest.mark.parametrize(
    ("gpus", "text", "told"),
    [
        (0, "cuda", "--device is cuda, and this machine has no such GPU: torch .* finds none; give --device cpu, or"),
        (2, "cuda:2", "--device is cuda:2, and this machine has no such GPU: it has 2 of them, numbered from 0"),
        (2, "mps", "--device is mps, and this machine has no such GPU; give --device cpu"),
    ],
)
def test_a_device_that_is_not_there_is_told(gpus: int, text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ConfigError, match=told):
        device_of(text)


def test_the_cpu_is_described_with_its_memory() -> None:
    name, memory = described(CPU)
    assert name == "cpu"
    assert memory > 2**28
    assert described(META) == ("meta", 0)


class Hungry(Placed):
    """Needs more memory than there is, once."""

    once = True

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.once and outputs.requires_grad:
            self.once = False
            torch.empty(2**56, dtype=torch.uint8)
        return super().loss(outputs, targets)


def test_a_client_that_fills_the_memory_is_skipped_with_figures_and_the_next_one_trains() -> None:
    _, clients = hosted(CPU, Hungry())
    start = clients.initial_weights(0)
    with pytest.raises(OrderError) as caught:
        clients.train(0, start, SETTINGS, 1, Control())
    told = caught.value.failure.detail
    assert "the memory of cpu is full: it asked for 67108864.00 GiB at once." in told
    assert "Lower --batch-size (--accumulate makes up for it)" in told
    assert clients.train(0, start, SETTINGS, 1, Control()).steps == 2


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_every_kind_of_full_memory_is_known(error: Exception) -> None:
    assert devices.memory_full(error, CPU).startswith("the memory of cpu is full. Lower --batch-size")


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory of names")])
def test_other_errors_are_told_as_they_are(error: Exception) -> None:
    assert devices.memory_full(error, CPU) == ""


class Moved(Placed):
    """Moves itself to a GPU."""

    def model(self) -> nn.Module:
        return super().model().cuda()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_model_that_moves_itself_is_told_to_leave_that_to_the_node() -> None:
    with pytest.raises(TaskError, match=r"the task's model\(\) raised .*CUDA") as caught:
        hosted(CPU, Moved())
    assert caught.value.remedy.startswith(
        "leave out .cuda() and .to(device) in the task, for --device places the model"
    )


def test_a_node_with_another_precision_than_it_knows_refuses() -> None:
    _, clients = hosted(CPU)
    how = TrainingSettings("sgd", 1, 4, 0.1, seed=0, optimizer=OptimizerSettings("sgd", precision="float8"))
    with pytest.raises(OrderError, match="there is no precision 'float8'"):
        clients.train(0, clients.initial_weights(0), how, 1, Control())
