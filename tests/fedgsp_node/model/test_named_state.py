"""The tensors that training changes travel under the names of state_dict(), whatever the one of a wrapper does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

from fedgsp import check
from fedgsp.errors import TaskError
from fedgsp.messages import Additions, OptimizerSettings, TrainingSettings
from fedgsp.seeds import stream
from fedgsp.task import Task
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.finished.export import export
from fedgsp_node.finished.record import read
from fedgsp_node.model.model_check import check_model
from fedgsp_node.model.named_state import state_of
from fedgsp_node.model.torch_weights import classifier, tensor_specs
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs
from tests.support.run_directories import write

BATCH, RATE = 7, 0.05


def body() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.BatchNorm1d(8))


def checkpointed() -> nn.Module:
    """Its buffers have another name in the model than in state_dict()."""
    wrapped = checkpoint_wrapper(body(), checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    return nn.Sequential(wrapped, nn.Linear(8, 3))


class LeavesOut(nn.Sequential):
    """Its own state_dict() leaves out what it has learned about the inputs."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        saved = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in saved.items() if "running" not in name}


def leaving_out() -> nn.Module:
    return LeavesOut(body(), nn.Linear(8, 3))


KINDS = (checkpointed, leaving_out)


class Wrapping(nn.Module):
    """Its state_dict() is that of the model inside, and ignores keep_vars. Tensors are tied, empty, or equal views."""

    def __init__(self) -> None:
        super().__init__()
        tied, numbers = nn.Linear(8, 8), torch.arange(4)
        self.model = nn.Sequential(body(), tied, tied, nn.Linear(8, 3))
        for layer in (tied, self.model[3]):
            layer.register_buffer("nothing", torch.zeros(0))
            layer.register_buffer("numbers", numbers[:3])

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.state_dict()

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return self.model.load_state_dict(state, strict, assign)


class Copying(nn.Module):
    """Its state_dict() has copies of the tensors of the model inside, with their names there."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(body(), nn.Linear(8, 3))
        hooks: Any = self
        hooks.register_state_dict_post_hook(Copying._rename)
        hooks.register_load_state_dict_pre_hook(Copying._rename_back)

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)

    def _rename(self, state: Any, prefix: str, local: Any) -> None:
        for name in list(state):
            state[name.removeprefix("model.")] = state.pop(name).detach().bfloat16()

    def _rename_back(self, state: Any, *_: Any) -> None:
        for name in list(state):
            state[f"model.{name}"] = state.pop(name)


class Colliding(nn.Module):
    """Its state_dict() is that of a model inside, whose layer has the name of another one here."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential()
        self.inside.body, self.inside.last = body(), nn.Linear(8, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.inside(x))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.inside.state_dict(*args, **kwargs)


class OfModel(Blobs):
    """A task with a model of another kind."""

    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self._kind = kind
        self.extractor = "0"

    def model(self) -> nn.Module:
        return self._kind()


class Checkpointed(OfModel):
    def __init__(self) -> None:
        super().__init__(checkpointed)


class LeftOut(OfModel):
    def __init__(self) -> None:
        super().__init__(leaving_out)


class Wrapped(OfModel):
    def __init__(self) -> None:
        super().__init__(Wrapping)


class Copied(OfModel):
    def __init__(self) -> None:
        super().__init__(Copying)


class Collided(OfModel):
    def __init__(self) -> None:
        super().__init__(Colliding)


def settings(algorithm: str = "sgd", **others: Any) -> TrainingSettings:
    return TrainingSettings(algorithm, 2, BATCH, RATE, seed=11, **others)


def tensors(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in weights.arrays.items()}


def plainly(task: Task, start: Weights, client: int) -> nn.Module:
    """A loop of torch."""
    module = task.model()
    module.load_state_dict(tensors(start), strict=False)  # tied tensors have one name here
    data, order = task.data(client).train, stream(11, "batch-order", 1, client)
    x, y = torch.from_numpy(data.x.copy()), torch.from_numpy(data.y.copy())
    optimiser = torch.optim.SGD(module.parameters(), RATE)
    for _ in range(2):
        for rows in torch.split(torch.from_numpy(order.permutation(len(x))), BATCH):
            optimiser.zero_grad()
            task.loss(module(x[rows]), y[rows]).backward()
            optimiser.step()
    return module


@pytest.mark.parametrize("kind", [*KINDS, Wrapping, Colliding])
def test_batch_norm_travels_and_is_loaded_as_from_a_plain_loop(kind: Callable[[], nn.Module]) -> None:
    task = OfModel(kind)
    clients = Clients(task, None)
    clients.rehearse()
    start = clients.initial_weights(3)
    trained = clients.train(2, start, settings(), 1, Control()).after
    found, expected = task.model(), plainly(task, start, 2)
    found.load_state_dict(tensors(trained), strict=False)
    every = [dict((*module.named_parameters(), *module.named_buffers())) for module in (found, expected)]
    for name, tensor in every[1].items():
        torch.testing.assert_close(every[0][name], tensor, rtol=1e-5, atol=1e-5, msg=name)
    data = task.data(2).test
    with torch.no_grad():
        outputs = expected.eval()(torch.from_numpy(data.x))
    judged = clients.evaluate(2, trained, Control())
    assert judged.correct == task.correct(outputs, torch.from_numpy(data.y))


def test_the_names_are_those_of_a_model_without_the_wrapper() -> None:
    plain = nn.Sequential(body(), nn.Linear(8, 3))
    assert tensor_specs(checkpointed()) == tensor_specs(plain)
    for head in ("0.1.", "0._checkpoint_wrapped_module.1."):  # either name
        assert tensor_specs(checkpointed(), (head,)) == tensor_specs(plain, ("0.1.",))
        module: Any = checkpointed()
        assert classifier(module, (head,)) is module[0][1]


def test_the_names_are_listed_once_for_all_prefixes_of_a_head() -> None:
    class Counts(nn.Sequential):
        calls = 0

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().state_dict(*args, **kwargs)

    needed = set()
    for number in (1, 50):
        module = Counts(body(), nn.Linear(8, 3))
        tensor_specs(module, ("1.",) * number)
        needed.add(module.calls)
    assert len(needed) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("pfedme", {}), ("fedmmd", {}), ("ditto", {}), ("fedfusion", {"evaluation": "previous"})],
)
def test_every_name_is_found_by_the_trainings(kind: Any, algorithm: str, options: dict[str, str]) -> None:
    clients = Clients(OfModel(kind), None)
    clients.extend(Additions(algorithm, options))
    start = clients.initial_weights(3)
    optimizer = OptimizerSettings("adamw", state="kept") if algorithm == "ditto" else None
    order = settings(algorithm, options=options, optimizer=optimizer)
    learned = clients.train(2, start, order, 1, Control())
    (mean,) = {name for name, _ in clients.task.model().named_buffers() if name.endswith("0.running_mean")}
    name = mean.replace("_checkpoint_wrapped_module.", "")
    assert (learned.after.arrays[name] != start.arrays[name]).any()


@pytest.mark.parametrize("kind", [Checkpointed, LeftOut, Wrapped, Copied, Collided])
def test_an_exported_file_has_them_all_once_and_is_loaded(kind: Callable[[], OfModel], tmp_path: Path) -> None:
    task, name = kind(), f"{__name__}:{getattr(kind, '__name__', '')}"
    clients = Clients(task, None)
    trained = clients.train(2, clients.initial_weights(3), settings(), 1, Control()).after
    run = read(write(tmp_path / "run", task, {"final": (trained, ())}, task=name))
    out = tmp_path / "whole.safetensors"
    export(run, task, run.model("final", None), out, client=None, personal=None, merge_adapters=False, tell=print)
    loaded = task.model()
    loaded.load_state_dict(load_file(out))
    rounded = 0.01 if kind is Copied else 0
    for tensor, expected in tensors(trained).items():
        torch.testing.assert_close(state_of(loaded)[tensor].detach(), expected, rtol=rounded, atol=0, msg=tensor)


def test_a_wrapper_that_ignores_keep_vars_gives_its_names_in_every_state() -> None:
    clients = Clients(Wrapped(), None)  # whose model has no values in between
    names = set(clients.initial_weights(3).arrays)
    assert names == {name for name in Wrapping().model.state_dict() if not name.startswith("2.")}
    after = clients.train(2, clients.initial_weights(3), settings(), 1, Control()).after
    assert after.arrays.keys() == names
    assert after.arrays["3.numbers"].tolist() == [0, 1, 2]


def test_where_names_collide_all_tensors_have_those_of_the_module() -> None:
    named = dict((*Colliding().named_parameters(), *Colliding().named_buffers()))
    assert {spec.name for spec in tensor_specs(Colliding())} == named.keys()
    assert {spec.name for spec in tensor_specs(Colliding()) if spec.head} == {"last.weight", "last.bias"}
    assert check(Collided()).good


class Hiding(nn.Linear):
    """A layer that leaves its own constants out of its state_dict(), as some of torchaudio do."""

    def __init__(self, whole: bool) -> None:
        super().__init__(6, 3)
        self.register_buffer("mask", torch.full((3,), float("-inf")))
        self.register_buffer("rotations", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("last", torch.zeros(1, 3))
        self.whole = whole
        if not whole:
            hooks: Any = self
            hooks.register_state_dict_post_hook(lambda _, state, prefix, __: Hiding._hide(state, prefix))

    @staticmethod
    def _hide(state: Any, prefix: str) -> None:
        for name in ("mask", "rotations", "last"):
            del state[prefix + name]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        saved = super().state_dict(*args, **kwargs)
        if self.whole:
            self._hide(saved, kwargs.get("prefix", ""))
        return saved

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x).detach()
        return super().forward(x)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("around", [lambda layer: layer, nn.Sequential, LeavesOut])
def test_what_a_layer_leaves_out_itself_stays_at_home(around: Any, whole: bool) -> None:
    task = OfModel(lambda: around(Hiding(whole)))
    assert {spec.name.removeprefix("0.") for spec in tensor_specs(task.model())} == {"weight", "bias"}
    assert check(task).good
    clients = Clients(task, None)
    for client in (1, 2):
        clients.train(client, clients.initial_weights(3), settings(), 1, Control())


def test_a_state_dict_that_fails_is_told_with_its_line() -> None:
    class Fails(nn.Linear):
        def state_dict(self) -> Any:  # type: ignore[override]
            return super().state_dict()

    with pytest.raises(TaskError, match=r"model\(\)\.state_dict\(\) raised TypeError: .*'keep_vars'"):
        check_model(Fails(2, 2))
