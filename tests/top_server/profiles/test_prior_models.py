"""What clients learn alone before the first round: trained once, from the first model; collected once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, MemberDone, MemberSkipped, ModelRef, Results, TensorSpec, Trained
from fedgsp.tensors.weights import Weights
from tests.support.surveyed import Surveys, surveyed
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.models import GLOBAL, INITIAL
from top_server.profiles.priors import PriorModels

#: Of a prior model: two parameters, a buffer and a counter.
SPECS = (
    TensorSpec("a", "float64", (1,)),
    TensorSpec("var", "float32", (1,), trainable=False),
    TensorSpec("b", "float32", (1, 1)),
    TensorSpec("count", "int64", (), trainable=False),
)


def prior(client: int) -> Weights:
    arrays = {"a": np.array([client]), "var": np.array([1e6]), "b": np.array([[2.0]]), "count": np.array(77)}
    return Weights.of(arrays, SPECS)


@asynccontextmanager
async def learning(
    monkeypatch: pytest.MonkeyPatch, directory: Path, clients: int = 3, **config: Any
) -> AsyncIterator[tuple[Surveys, PriorModels]]:
    options = config.pop("options", {})
    async with surveyed(
        monkeypatch, clients, "weighted-mean", options, run_dir=directory, rounds=7, local_epochs=3, **config
    ) as surveys:

        def alone(task: GroupTask) -> GroupOutcome:
            refs = {client: Trained(ModelRef(f"prior of {client}")) for client in task.clients}
            return surveys.outcome(task, done=tuple(MemberDone(c, 0, trained) for c, trained in refs.items()))

        def collect(task: GroupTask) -> GroupOutcome:
            done = tuple(MemberDone(client, 0, Trained(held.ref)) for client, held in task.own_starts.items())
            return surveys.outcome(task, done=done, models={client: prior(client) for client in task.clients})

        surveys.answers.update(alone=alone, collect=collect)
        profile = surveys.stage.profile("prior-models")
        yield surveys, profile
        profile.close()


def gram_of(*clients: int) -> list[list[float]]:
    return [[one * other + 4.0 for other in clients] for one in clients]


async def test_inner_products_are_of_trainable_weights_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with learning(monkeypatch, tmp_path) as (_, profile):
        evidence = await profile.gather(1)
        assert evidence.clients == (0, 1, 2)
        assert evidence.matrices["gram"].tolist() == gram_of(0, 1, 2)


async def test_clients_train_once_plainly_for_as_long_as_the_run_and_are_collected_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        first = await profile.gather(1)
        again = await profile.gather(2)
        assert np.array_equal(first.matrices["gram"], again.matrices["gram"])
        alone, collect = surveys.asked
        assert (alone.program, alone.training, alone.local_epochs, alone.results) == ("alone", "sgd", 21, Results.KEPT)
        assert [(held.ref.id, weight) for held, weight in alone.starts] == [("run/initial", 1.0)]
        assert collect.program == "collect"
        assert {c: (held.ref.id, held.client) for c, held in collect.own_starts.items()} == {
            client: (f"prior of {client}", client) for client in range(3)
        }


async def test_the_number_of_epochs_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with learning(monkeypatch, tmp_path, options={"prior_epochs": "4"}) as (surveys, profile):
        await profile.gather(1)
        assert surveys.of("alone")[0].local_epochs == 4


async def test_newcomers_train_from_the_first_model_though_the_global_one_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        await profile.gather(1)
        models = surveys.stage.context.models
        await surveys.stage.take(1, await surveys.stage.trained((0, 1), 5.0))
        await surveys.stage.finish(1)
        assert await surveys.stage.value(models[GLOBAL]) == 5.0
        await surveys.join("late", c7=40)
        evidence = await profile.gather(2)
        assert [task.clients for task in surveys.of("alone")] == [(0, 1, 2), (7,)]
        assert [task.clients for task in surveys.of("collect")] == [(0, 1, 2), (7,)]
        ((held, _),) = surveys.of("alone")[1].starts
        assert held.ref.id == "run/initial"
        assert await surveys.stage.value(models[INITIAL]) == 1.0
        assert evidence.matrices["gram"].tolist() == gram_of(0, 1, 2, 7)


async def test_the_model_of_a_client_that_comes_back_with_other_data_is_collected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        members = surveys.stage.context.membership
        node = await surveys.join("n7", c7=30)
        for number, samples in ((1, 30), (2, 30), (3, 24)):
            await members.leave(node, "its stream was lost")
            node = await surveys.join("n7", c7=samples)
            assert (await profile.gather(number)).matrices["gram"].tolist() == gram_of(0, 1, 7)
        for program in ("alone", "collect"):
            assert [task.clients for task in surveys.of(program)] == [(0, 1, 7), (7,)]


@pytest.mark.parametrize(("code", "trained"), [(FailureCode.UNREACHABLE, 1), (FailureCode.NO_SUCH_MODEL, 2)])
async def test_a_model_that_does_not_come_is_a_row_of_nan_and_trained_again_if_its_node_has_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: FailureCode, trained: int
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        whole = surveys.answers["collect"]

        def without(task: GroupTask) -> GroupOutcome:
            outcome = whole(task)
            models: dict[int, Weights | Failure] = {**outcome.models, 1: Failure(code, "gone")}
            skipped = (MemberSkipped(1, Failure(code, "gone")),)
            return surveys.outcome(task, done=outcome.done, skipped=skipped, models=models)

        surveys.answers["collect"] = without
        gram = (await profile.gather(1)).matrices["gram"]
        assert np.isnan(gram[1]).all()
        assert np.isnan(gram[:, 1]).all()
        assert gram[np.ix_([0, 2], [0, 2])].tolist() == gram_of(0, 2)
        surveys.answers["collect"] = whole
        assert (await profile.gather(2)).matrices["gram"].tolist() == gram_of(0, 1, 2)
        assert [task.clients for task in surveys.of("collect")] == [(0, 1, 2), (1,)]
        assert [task.clients for task in surveys.of("alone")] == [(0, 1, 2), (1,)][:trained]
        assert (await profile.gather(3)).matrices["gram"].tolist() == gram_of(0, 1, 2)
        assert len(surveys.asked) == 2 + trained


async def test_a_model_that_was_not_collected_because_the_manager_was_full_is_collected_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        whole = surveys.answers["collect"]

        def ends_early(task: GroupTask) -> GroupOutcome:
            full = Failure(FailureCode.UNSPECIFIED, "the group manager is full")
            return surveys.outcome(task, result=full, done=whole(task).done[:1], models={0: prior(0)})

        surveys.answers["collect"] = ends_early
        assert np.isnan((await profile.gather(1)).matrices["gram"][[1, 2]]).all()
        surveys.answers["collect"] = whole
        assert (await profile.gather(2)).matrices["gram"].tolist() == gram_of(0, 1, 2)
        assert [task.clients for task in surveys.of("alone")] == [(0, 1, 2)]


async def test_a_client_that_lost_its_model_and_cannot_train_again_is_in_no_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        surveys.answers["collect"] = lambda task: surveys.outcome(task)
        first = await profile.gather(1)
        assert np.isnan(first.matrices["gram"]).all()
        surveys.answers["alone"] = lambda task: surveys.outcome(task)
        assert (await profile.gather(2)).clients == ()


async def test_inner_products_are_made_again_only_when_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        first = await profile.gather(1)
        assert (await profile.gather(2)).matrices["gram"] is first.matrices["gram"]
        node = await surveys.join("late", c7=40)
        assert (await profile.gather(3)).matrices["gram"].tolist() == gram_of(0, 1, 2, 7)
        await surveys.stage.context.membership.leave(node, "it broke")
        evidence = await profile.gather(4)
        assert (evidence.clients, evidence.matrices["gram"].tolist()) == ((0, 1, 2), gram_of(0, 1, 2))


async def test_who_could_not_train_is_not_known_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(monkeypatch, tmp_path) as (surveys, profile):
        whole = surveys.answers["alone"]
        surveys.answers["alone"] = lambda task: surveys.outcome(task, done=whole(task).done[1:])
        assert (await profile.gather(1)).clients == (1, 2)
        surveys.answers["alone"] = whole
        evidence = await profile.gather(2)
        assert (evidence.clients, evidence.matrices["gram"].tolist()) == ((0, 1, 2), gram_of(0, 1, 2))
        assert surveys.of("alone")[1].clients == (0,)
