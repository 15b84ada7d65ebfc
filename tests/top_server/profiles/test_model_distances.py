"""How far cluster models are from what clients trained last: squared distances, or draws for those without a model."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import Evaluated, Failure, FailureCode, MemberDone, MemberSkipped, ModelRef
from tests.support.scripted import TENSORS, model
from tests.support.surveyed import Surveys, surveyed
from top_server.evidence import Evidence
from top_server.groups.lost import AllLostError
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.models import Held, cluster_slot
from top_server.profiles import PROFILES
from top_server.profiles.questions import ModelDistances
from top_server.rounds import gather

#: The client that holds each model, and the model's value.
Values = dict[int, float]


@asynccontextmanager
async def clustered(
    monkeypatch: pytest.MonkeyPatch, models: int = 3, own: Values | None = None, clients: int = 5
) -> AsyncIterator[tuple[Surveys, ModelDistances]]:
    """Clients of which some hold models; the models of the clusters begin as 0, 1, ..."""
    async with surveyed(monkeypatch, clients, "clusters", {"models": str(models)}, seed=5) as surveys:
        values = dict(own or {})
        surveys.stage.progress.local_models.update(
            {client: Held(ModelRef(f"own {client}"), client) for client in values}
        )

        def initialise(task: GroupTask) -> GroupOutcome:
            return surveys.outcome(task, result=surveys.made(model(float(task.number))))

        def distance(task: GroupTask) -> GroupOutcome:
            ((start, weight),) = task.starts
            cluster = float(start.ref.id.rpartition(" ")[2])
            assert (weight, start.client) == (1.0, None)
            assert dict(task.own_starts) == {c: surveys.stage.progress.local_models[c] for c in task.clients}
            done = tuple(
                MemberDone(client, place, Evaluated(0, 0, 0.0, squared_distance=(values[client] - cluster) ** 2))
                for place, client in enumerate(task.clients)
                if client in values
            )
            return surveys.outcome(task, done=done)

        surveys.answers.update(initialise=initialise, distance=distance)
        yield surveys, surveys.stage.profile("model-distances")


def drawn(evidence: Evidence) -> list[int]:
    """The model that each client drew, which costs it 0, and the others 1."""
    costs = evidence.matrices["costs"]
    assert sorted(set(costs.ravel().tolist())) == [0, 1]
    assert (np.sort(costs, axis=1) == [0] + [1] * (costs.shape[1] - 1)).all()
    return [int(row.argmin()) for row in costs]


async def test_models_are_made_once_each_unlike_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch) as (surveys, profile):
        await profile.gather(1)
        await profile.gather(2)
        assert [(task.program, task.number) for task in surveys.asked] == [("initialise", n) for n in range(3)]
        models = surveys.stage.context.models
        for cluster in range(3):
            assert models.weights(models[cluster_slot(cluster)]).tensors == TENSORS


async def test_clients_that_have_not_trained_draw_a_model_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch, clients=30) as (surveys, profile):
        first, second, again = [drawn(await profile.gather(number)) for number in (1, 2, 1)]
        assert set(first) == {0, 1, 2}
        assert first == again != second
        assert surveys.of("distance") == []


async def test_costs_are_squared_distances_and_clients_keep_what_they_train(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch, own={0: 0.5, 1: 2.0, 2: 1.0, 3: 7.0, 4: 0.0}) as (surveys, profile):
        evidence = await profile.gather(2)
        assert evidence.clients == (0, 1, 2, 3, 4)
        expected = [[(w - cluster) ** 2 for cluster in range(3)] for w in (0.5, 2.0, 1.0, 7.0, 0.0)]
        assert evidence.matrices["costs"].tolist() == expected
        assert evidence.retain
        assert [task.clients for task in surveys.of("distance")] == [(0, 1, 2, 3, 4)] * 3


async def test_one_whose_model_is_gone_draws_like_one_that_never_had_any(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch, own={1: 2.0, 3: 7.0}) as (surveys, profile):
        surveys.stage.progress.local_models[4] = Held(ModelRef("own 4"), 4)  # which its node lost
        costs = (await gather(surveys.stage.progress, profile, 2)).matrices["costs"]
        assert costs[[1, 3]].tolist() == [[4, 1, 0], [49, 36, 25]]
        for client in (0, 2, 4):
            assert sorted(costs[client].tolist()) == [0, 1, 1]
        assert set(surveys.stage.progress.local_models) == {1, 3}  # it counts in no centre
        assert [event["client"] for event in surveys.stage.journal.of_kind("model_lost")] == [4]


def cut(surveys: Surveys, code: FailureCode = FailureCode.NODE_LOST, **lost: int) -> None:
    """The node of a client is lost as it is asked about a cluster: c4=1."""
    whole = surveys.answers["distance"]

    def answer(task: GroupTask) -> GroupOutcome:
        outcome, cluster = whole(task), int(task.starts[0][0].ref.id.rpartition(" ")[2])
        gone = [int(name[1:]) for name, at in lost.items() if at == cluster]
        skipped = tuple(MemberSkipped(client, Failure(code, "cut")) for client in gone)
        done = tuple(one for one in outcome.done if one.client not in gone)
        return dataclasses.replace(outcome, done=done, skipped=skipped)

    surveys.answers["distance"] = answer


@pytest.mark.parametrize("code", [FailureCode.NODE_LOST, FailureCode.UNKNOWN_CLIENT])
async def test_one_whose_node_is_lost_for_a_moment_is_left_out_and_keeps_its_model(
    monkeypatch: pytest.MonkeyPatch, code: FailureCode
) -> None:
    """Also if its node is back, and did not bring it: it may come later, with its model."""
    async with clustered(monkeypatch, own={1: 2.0, 3: 7.0, 4: 1.0}) as (surveys, profile):
        cut(surveys, code, c4=1)
        evidence = await gather(surveys.stage.progress, profile, 2)
        assert evidence.clients == (0, 1, 2, 3)
        assert evidence.matrices["costs"][[1, 3]].tolist() == [[4, 1, 0], [49, 36, 25]]
        assert set(surveys.stage.progress.local_models) == {1, 3, 4}
        assert not surveys.stage.journal.of_kind("model_lost")


async def test_a_round_in_which_all_nodes_were_lost_for_a_moment_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with clustered(monkeypatch, models=2, own={0: 0.5, 1: 2.0}, clients=2) as (surveys, profile):
        cut(surveys, c0=0, c1=1)
        with pytest.raises(AllLostError, match="no client could compare its model"):
            await gather(surveys.stage.progress, profile, 2)
        assert set(surveys.stage.progress.local_models) == {0, 1}


FULL = Failure(FailureCode.UNSPECIFIED, "the group manager is full")


def ends_early(surveys: Surveys, cluster: int, answers: int) -> None:
    """The question about a cluster ends after so many answers, because its manager has no room for a model."""
    whole = surveys.answers["distance"]

    def answer(task: GroupTask) -> GroupOutcome:
        outcome = whole(task)
        if task.starts[0][0].ref.id.rpartition(" ")[2] != str(cluster):
            return outcome
        return dataclasses.replace(outcome, result=FULL, done=outcome.done[:answers])

    surveys.answers["distance"] = answer


async def test_who_could_not_be_asked_because_the_manager_was_full_is_left_out_and_keeps_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with clustered(monkeypatch, own={1: 2.0, 3: 7.0, 4: 1.0}) as (surveys, profile):
        ends_early(surveys, cluster=1, answers=2)
        evidence = await gather(surveys.stage.progress, profile, 2)
        assert evidence.clients == (0, 1, 2, 3)
        assert evidence.matrices["costs"][[1, 3]].tolist() == [[4, 1, 0], [49, 36, 25]]
        assert set(surveys.stage.progress.local_models) == {1, 3, 4}
        assert not surveys.stage.journal.of_kind("model_lost")
        assert surveys.stage.journal.of_kind("question_failed") == [
            {"event": "question_failed", "round": 2, "program": "distance", "clients": [4], "reason": str(FULL)}
        ]
        assert profile.silent[4] == FULL, "it misses the round for that"


async def test_a_round_before_which_nobody_could_be_asked_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch, models=2, own={0: 0.5, 1: 2.0}, clients=2) as (surveys, profile):
        ends_early(surveys, cluster=0, answers=0)
        with pytest.raises(AllLostError, match="the group manager is full"):
            await gather(surveys.stage.progress, profile, 2)
        assert set(surveys.stage.progress.local_models) == {0, 1}


async def test_who_is_not_there_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch, own={1: 2.0, 9: 7.0}) as (surveys, profile):
        assert (await profile.gather(2)).clients == (0, 1, 2, 3, 4)
        assert {task.clients for task in surveys.of("distance")} == {(1,)}


async def test_a_draw_does_not_depend_on_who_else_has_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clustered(monkeypatch) as (_, profile):
        nobody = (await profile.gather(2)).matrices["costs"]
    async with clustered(monkeypatch, own={0: 0.5, 3: 1.0}) as (_, profile):
        some = (await profile.gather(2)).matrices["costs"]
    assert np.array_equal(nobody[[1, 2, 4]], some[[1, 2, 4]])


@pytest.mark.parametrize("value", ["0", "x", "-1"])
def test_a_number_of_models_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=f"option models is '{value}'"):
        PROFILES["model-distances"].read({"models": value})
