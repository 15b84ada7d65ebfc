"""Aggregations and programs of group managers; trainings, outgoing steps and tasks of nodes; and profiles."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.messages import GroupResult, OptimizerSettings, TensorSpec
from fedgsp.optimizers import OPTIMIZERS, Optimizer
from fedgsp.outgoing import OUTGOING, Step
from fedgsp.programs import PROGRAMS
from fedgsp.seeds import stream
from fedgsp.task import Task
from fedgsp.tasks import TASKS
from fedgsp.tensors.relayed_state import STEP, name_of, state_tensors
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import TRAININGS
from fedgsp_node.clients import Clients
from fedgsp_node.kept.kept_tensors import arrays_of
from fedgsp_node.kept.relayed_state import RelayedState
from fedgsp_node.model.torch_weights import tensor_specs, weights_of
from fedgsp_node.optimizers import stepping
from fedgsp_node.outgoing.base import Outgoing
from fedgsp_node.tasks import load_task
from fedgsp_node.training.base import Algorithm
from fedgsp_node.training.control import Control, StoppedError
from group_manager.aggregation_classes import Aggregation, make
from tests.contracts.declarations import check_declaration
from tests.support.local_work import CrossEntropy, local_work, mlp, samples, settings
from tests.support.scene import hosted, scene
from tests.support.staged import stage
from tests.support.weights import TENSORS, some_weights
from top_server.profiles import PROFILES


async def check_aggregation(name: str) -> None:
    """One model of many, the same bits each time; the models that came are not changed."""
    check_declaration(AGGREGATIONS, name)
    assert _aggregated(name).digest == _aggregated(name).digest, "it aggregates otherwise each time"
    aggregation = make(name, {})
    assert isinstance(aggregation, Aggregation)
    assert aggregation.empty, "a new aggregation is not empty"
    with pytest.raises(ValueError, match=r".+"):  # result() without a model
        aggregation.result(some_weights(0))
    aggregation.fold(some_weights(1), 1.0, 1.0)
    assert not aggregation.empty, "it is empty after a model was folded"
    with pytest.raises(ValueError, match=r".+"):  # fold() of a model with other tensors
        aggregation.fold(some_weights(1, (TensorSpec("other", "float32", (2,)),)), 1.0, 1.0)


def _aggregated(name: str) -> Weights:
    aggregation, start = make(name, {}), some_weights(0)
    models = [some_weights(seed) for seed in (1, 2, 3)]
    digests = [model.copy().digest for model in models]
    for weight, model in enumerate(models, 1):
        aggregation.fold(model, float(weight), 2.0 * weight)
    result = aggregation.result(start if AGGREGATIONS[name].needs_start else None)
    assert result.tensors == start.tensors, "the result has other tensors"
    assert all(np.isfinite(array).all() for array in result.arrays.values())
    assert [model.copy().digest for model in models] == digests, "it changed a model that came"
    return result


async def check_program(name: str) -> None:
    """Every member is reported, once; the result is one model; nobody keeps a model; the same bits each time."""
    program = check_declaration(PROGRAMS, name)
    assert isinstance(program, type(PROGRAMS["relay"]))
    values = [await _played(name), await _played(name)]
    assert values[0] == values[1], "it gives another result each time"


async def _played(name: str) -> float | None:
    async with scene() as play:
        members = hosted(n1=[0, 2], n2=[1])
        outcome = await play.run(members, name)
        assert isinstance(outcome, GroupResult), outcome
        assert len(set(play.done)) == len(play.done), "a member is done twice"
        assert set(play.done) | set(play.skipped) <= {member.client for member in members}
        if PROGRAMS[name].makes_model:
            return await play.result(outcome)
        play.assert_released()
        return None


async def check_training(name: str) -> None:
    """The model that came keeps its bits, the module stays bound, and the same seed gives the same bits."""
    check_declaration(TRAININGS, name)
    algorithm = TRAININGS[name].load()
    assert isinstance(algorithm, Algorithm)
    assert _trained(name) == _trained(name), "it trains otherwise each time"
    stopped = Control(stop=threading.Event())
    stopped.stop.set()
    with pytest.raises(StoppedError):
        _trained(name, stopped)


def _trained(name: str, control: Control | None = None) -> tuple[bytes, float, float]:
    torch.manual_seed(1)
    module, algorithm = mlp(), TRAININGS[name].load()
    personal = weights_of(module) if TRAININGS[name].keeps_personal else None
    how = settings(2, 5, 0.05, name)
    work, trained = local_work(module, CrossEntropy(), samples(23), how, control=control, personal=personal)
    came = work.received.copy()
    loss, steps = algorithm.train(work)
    arrays_of(work.kept, TRAININGS[name].keeps_tensors)
    assert work.received.digest == came.digest, "it changed the model that came"
    assert trained.digest == weights_of(module).digest, "the module is bound to other weights"
    assert trained.copy().digest != came.digest, "it trained nothing"
    assert np.isfinite(loss)
    assert steps > 0
    assert work.control.mark > 0, "it never called control.tick(), so that nobody sees it move"
    if algorithm.adapt is not None:
        work.rng, before = stream(0, "adaptation"), work.control.mark
        algorithm.adapt(work)
        declared = TRAININGS[name].adapts(work.options)
        assert work.control.mark - before <= declared, "its declaration (adapts) says fewer steps than it takes"
    return trained.copy().digest, loss, steps


async def check_optimizer(name: str) -> None:
    """A step against the gradient for parameters of any shape; the same bits each time; the state that it declares."""
    declared = check_declaration(OPTIMIZERS, name)
    assert isinstance(declared, Optimizer)
    entries = declared.state(declared.read({}))
    if entries is not None:
        module = mlp()
        specs = tensor_specs(module)
        tensors = state_tensors(entries, specs)
        state = Weights.of({spec.name: np.zeros(()) for spec in tensors}, tensors)
        optimizer = declared.load()(list(module.parameters()), 0.01, declared.read({}))
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        by_id = {id(parameter): name for name, parameter in module.named_parameters()}
        RelayedState(state, entries).end(0, optimizer, by_id)
        counts = [state.arrays[name_of(STEP, spec.name)].item() for spec in specs]
        assert not optimizer.state or all(counts), "it has a state that it does not say"
    settings_ = OptimizerSettings(name, clip_norm=1e9)
    assert _stepped(settings_) == _stepped(settings_), "it steps otherwise each time"


def _stepped(settings_: OptimizerSettings) -> bytes:
    torch.manual_seed(1)
    work, trained = local_work(mlp(), CrossEntropy(), samples(23), settings(2, 5, 0.01))
    work.stepping = stepping(settings_, work.task)
    before = work.received.copy()
    loss, steps = TRAININGS["sgd"].load().train(work)
    assert all(np.isfinite(array).all() for array in trained.arrays.values())
    assert trained.copy().digest != before.digest, "it changed no parameter"
    assert np.isfinite(loss)
    assert steps > 0
    return trained.copy().digest


async def check_outgoing(name: str) -> None:
    """Finite values in the tensors that came, the same bits each time, and an unchanged start."""
    step = check_declaration(OUTGOING, name)
    assert isinstance(step, Step)
    tensors = (*TENSORS, TensorSpec("head", "float32", (2,), head=True))
    model, start = some_weights(1, tensors), some_weights(0, tensors)
    before = start.copy().digest
    results = [step.load()(_outgoing(step, model, start), step.read({})) for _ in range(2)]
    for result in results:
        assert isinstance(result, Weights)
        left_out = set(tensors) - set(result.tensors)
        assert left_out if step.selects else result.tensors == tensors
        assert all(np.isfinite(array).all() for array in result.arrays.values())
    assert results[0].digest == results[1].digest, "it gives another result each time"
    assert start.copy().digest == before, "it changed the start"


def _outgoing(step: Step, model: Weights, start: Weights) -> Outgoing:
    return Outgoing(
        client=2,
        round=3,
        model=model.copy(),
        start=start if step.needs_start else None,
        rng=stream(0, "outgoing"),
        secret=b"" if step.repeatable else bytes(range(32)),
    )


async def check_task(name: str) -> None:
    """Its model, data and methods go together, and are the same each time."""
    check_declaration(TASKS, name)
    task, again = load_task(name, {}), load_task(name, {})
    assert isinstance(task, Task)
    clients = Clients(task, range(min(task.num_clients, 3)))
    clients.rehearse()
    assert clients.initial_weights(0).digest == Clients(again, [0]).initial_weights(0).digest
    for client in range(min(task.num_clients, 3)):
        first, second = task.data(client), again.data(client)
        for part in ("train", "test"):
            one, other = getattr(first, part), getattr(second, part)
            assert np.array_equal(one.x, other.x), "a client has other data each time"
            assert np.array_equal(one.y, other.y)


async def check_profile(name: str) -> None:
    """A new profile saves itself as JSON, and comes back as it was."""
    check_declaration(PROFILES, name)
    with tempfile.TemporaryDirectory() as folder:
        async with stage("none", run_dir=Path(folder)) as s:
            profile = s.profile(name)
            try:
                saved = json.loads(json.dumps(profile.save()))
                profile.write(Path(folder))
                again = s.profile(name)
                try:
                    again.restore(saved)
                    again.load(Path(folder))
                    assert json.loads(json.dumps(again.save())) == saved, "its state does not come back"
                finally:
                    again.close()
            finally:
                profile.close()
