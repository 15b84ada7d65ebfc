"""Distances between clients' data: measured once a pair, on as many samples as the smallest client can spare."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.discriminators import MOST_FEATURES
from fedgsp.errors import ConfigError, RunError
from fedgsp.messages import (
    Discrimination,
    DiscriminatorSettings,
    Failure,
    FailureCode,
    GroupResult,
    MemberSkipped,
    TensorSpec,
)
from fedgsp.tensors.weights import Weights
from tests.support.measured import found, lacking, matrix, measuring, same, truth
from tests.support.surveyed import Surveys
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.pool import Manager
from top_server.profiles import PROFILES
from top_server.profiles.options import DistanceOptions


def plans(surveys: Surveys) -> list[Discrimination]:
    return [task.discrimination for task in surveys.asked if task.discrimination is not None]


def samples(surveys: Surveys) -> list[int]:
    """Of each client, measurement by measurement."""
    return [plan.settings.samples for plan in plans(surveys) if plan.settings is not None]


# --- what is asked


async def test_all_pairs_are_measured_once_on_half_of_the_smallest_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        for number in (1, 2, 3):
            evidence = await profile.gather(number)
            assert evidence.clients == (0, 1, 2, 3)
            assert np.array_equal(evidence.matrices["distances"], matrix((0, 1, 2, 3)))
        (task,) = surveys.asked
        assert (task.program, task.clients, task.starts) == ("discriminate", (0, 1, 2, 3), ())
        settings = DiscriminatorSettings(5, 1, 32, 0.01, 5, shared=False, feature_scale=1.0)
        assert task.discrimination == Discrimination(settings, 2000, 10, 10, (), "cross-fitted")


async def test_options_say_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "distance": "shared",
        "feature_scale": "0.25",
        "estimate": "last",
        "exchanges": "70",
        "local_steps": "6",
        "discriminator_batch": "8",
        "discriminator_rate": "0.05",
        "judge_every": "3",
        "patience": "2",
    }
    async with measuring(monkeypatch, tmp_path, **options) as (surveys, profile):
        await profile.gather(1)
        settings = DiscriminatorSettings(5, 6, 8, 0.05, 5, shared=True, feature_scale=0.25)
        assert plans(surveys) == [Discrimination(settings, 70, 3, 2, (), "last")]


def test_the_defaults_are_those_of_the_paper_but_for_the_estimate() -> None:
    assert PROFILES["distances"].read({}) == DistanceOptions(
        "pairwise", 1.0, "cross-fitted", 2000, 1, 32, 0.01, 10, 10, None
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("distance", "cosine"),
        ("estimate", "best"),
        ("feature_scale", "0"),
        *((name, value) for name in ("exchanges", "local_steps", "judge_every", "patience") for value in ("0", "x")),
        ("discriminator_batch", "0"),
        ("discriminator_rate", "-1"),
        ("discriminator_rate", "nan"),
        ("exchanges", "99999999999"),
    ],
)
def test_an_option_that_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"profile distances: option {name} is '{value}'"):
        PROFILES["distances"].read({name: value})


def test_an_unknown_option_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ConfigError, match="no option 'colour'; its options are distance, feature_scale, estimate, exchanges"
    ):
        PROFILES["distances"].read({"colour": "red"})


@pytest.mark.parametrize(("shared", "networks", "outputs"), [("pairwise", 3, 1), ("shared", 1, 4)])
async def test_a_manager_may_take_the_stacks_of_the_largest_features(
    shared: str, networks: int, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, distance=shared) as (surveys, profile):
        await profile.gather(1)
        hidden, labels = 200, 10
        each = hidden * (MOST_FEATURES + 1) + hidden * (labels + 1) + outputs * (hidden + 1)
        (task,) = surveys.asked
        assert 4 * networks * each <= task.max_bytes <= 4 * networks * each + 64


# --- who is asked


async def test_clients_of_less_than_two_samples_are_not_asked_and_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        await surveys.join("small", c7=1, c8=2, c9=1)
        evidence = await profile.gather(1)
        assert evidence.clients == (0, 1, 7, 8, 9)
        assert [task.clients for task in surveys.asked] == [(0, 1, 8)]
        assert samples(surveys) == [1]
        assert same(evidence, lacking((0, 1, 7, 8, 9), 7, 9))
        await profile.gather(2)
        assert len(surveys.asked) == 1
        told = [(e["round"], e["client"]) for e in surveys.stage.journal.of_kind("not_compared")]
        assert sorted(told) == [(1, 7), (1, 9)]
        assert "less than 2 training samples" in surveys.stage.journal.of_kind("not_compared")[0]["reason"]


async def test_one_client_alone_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, clients=1) as (surveys, profile):
        await surveys.join("small", c7=1)
        assert same(await profile.gather(1), lacking((0, 7), 7))
        assert surveys.asked == []


async def test_newcomers_are_measured_with_everybody_and_the_others_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(one: int, other: int) -> float:
        return truth(one, other) + (0.5 if len(surveys.asked) > 1 and one != other else 0)

    async with measuring(monkeypatch, tmp_path, clients=2, rule=changing) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c7=40, c8=60)
        evidence = await profile.gather(2)
        assert [task.clients for task in surveys.asked] == [(0, 1), (0, 1, 7, 8)]
        assert [plan.newcomers for plan in plans(surveys)] == [(), (7, 8)]
        expected = matrix((0, 1, 7, 8), changing)
        expected[0, 1] = expected[1, 0] = truth(0, 1)
        assert same(evidence, expected)


async def test_newcomers_train_on_as_many_samples_as_the_first_or_on_half_of_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("large", c7=40)
        await profile.gather(2)
        await surveys.join("small", c8=6)
        await profile.gather(3)
        await surveys.join("large-again", c9=40)
        evidence = await profile.gather(4)
        assert samples(surveys) == [5, 5, 3, 5, 3]
        # with the small one the last one is told apart by itself
        assert [task.clients for task in surveys.asked[3:]] == [(0, 1, 2, 3, 7, 9), (8, 9)]
        assert same(evidence, matrix((0, 1, 2, 3, 7, 8, 9)))


async def test_a_small_newcomer_costs_the_others_that_come_with_it_no_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c5=4, c7=40, c8=60)
        evidence = await profile.gather(2)
        assert samples(surveys) == [5, 5, 2]
        assert [plan.newcomers for plan in plans(surveys)] == [(), (7, 8), (5,)]
        assert same(evidence, matrix((0, 1, 5, 7, 8)))
        (_, told) = surveys.stage.journal.of_kind("distances_found")
        assert (told["clients"], told["bytes"]) == ([0, 1, 5, 7, 8], 2 * 345)


async def test_one_of_several_measurements_may_come_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("small", c5=4)
        await profile.gather(2)
        whole = surveys.answers["discriminate"]

        def answer(task: GroupTask) -> GroupOutcome:
            failed = task.clients if task.clients == (5, 7) else ()
            skipped = tuple(MemberSkipped(client, Failure(FailureCode.TASK_RAISED, "")) for client in failed)
            return dataclasses.replace(whole(task), skipped=skipped)

        surveys.answers["discriminate"] = answer
        await surveys.join("late", c7=40)
        evidence = await profile.gather(3)
        expected = matrix((0, 1, 5, 7))
        expected[2, 3] = expected[3, 2] = np.nan
        assert same(evidence, expected)
        surveys.answers["discriminate"] = whole
        assert same(await profile.gather(4), matrix((0, 1, 5, 7)))


async def test_a_shared_network_sees_as_many_samples_of_all_as_the_smallest_can_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2, distance="shared") as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c5=4, c7=40)
        await profile.gather(2)
        assert samples(surveys) == [5, 2]
        assert surveys.asked[1].clients == (0, 1, 5, 7)


async def test_the_number_of_samples_does_not_grow_when_the_smallest_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=1) as (surveys, profile):
        await surveys.join("large", c7=40)
        small = await surveys.join("small", c8=6)
        await profile.gather(1)
        await surveys.stage.context.membership.leave(small, "it broke")
        await surveys.join("late", c9=40)
        await profile.gather(2)
        assert samples(surveys) == [3, 3]


async def test_clients_that_were_not_measured_yet_also_limit_the_samples_of_a_newcomer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because there was nobody to measure them with, or because a file told of them."""
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"clients": [0, 1], "distances": [[0, 0.5], [0.5, 0]]}))
    cases: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {"distances": str(path)})]
    for clients, options in cases:
        async with measuring(monkeypatch, tmp_path, clients=clients, **options) as (surveys, profile):
            await profile.gather(1)
            assert surveys.asked == []
            await surveys.join("large", c7=1000)
            await profile.gather(2)
            assert samples(surveys) == [5]


async def test_a_shared_network_learns_again_with_everybody_and_tells_of_newcomers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(one: int, other: int) -> float:
        return truth(one, other) + (0.5 if len(surveys.asked) > 1 and one != other else 0)

    async with measuring(monkeypatch, tmp_path, clients=2, rule=changing, distance="shared") as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c7=40)
        evidence = await profile.gather(2)
        assert [plan.newcomers for plan in plans(surveys)] == [(), ()]
        assert evidence.matrices["distances"][0].tolist() == [0, truth(0, 1), truth(0, 7) + 0.5]


async def test_a_client_that_comes_back_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        node = await surveys.join("flaky", c7=40)
        await profile.gather(1)
        await surveys.stage.context.membership.leave(node, "it broke")
        assert (await profile.gather(2)).away == {7: 40}
        await surveys.join("flaky", c7=40)
        evidence = await profile.gather(3)
        assert np.array_equal(evidence.matrices["distances"], matrix((0, 1, 7)))
        assert len(surveys.asked) == 1


@pytest.mark.parametrize("stays", [True, False])
async def test_clients_that_come_back_or_leave_while_others_are_measured_are_known(
    stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the evidence is who was measured, and as away who is away at its end."""
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        membership = surveys.stage.context.membership
        node = await surveys.join("flaky", c7=40)
        await profile.gather(1)
        await membership.leave(node, "it broke")
        measured = surveys.stage.context.managers.ensure

        async def meanwhile(count: int) -> list[Manager]:
            if stays:
                await surveys.join("flaky", c7=40)
            else:
                await membership.leave(late, "it broke")
            return await measured(count)

        late = await surveys.join("late", c8=60)
        monkeypatch.setattr(surveys.stage.context.managers, "ensure", meanwhile)
        evidence = await profile.gather(2)
        assert evidence.clients == (0, 1, 7, 8)
        assert evidence.away == ({} if stays else {7: 40})
        assert evidence.newcomers == (8,)


# --- results that cannot be used


async def test_a_client_that_the_result_does_not_name_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=3) as (surveys, profile):
        surveys.answers["discriminate"] = lambda task: surveys.outcome(
            task, result=surveys.made(found((2, 0), matrix((2, 0))))
        )
        assert same(await profile.gather(1), lacking((0, 1, 2), 1))


@pytest.mark.parametrize(
    "result", [Failure(FailureCode.UNREACHABLE, "manager m0 is gone"), GroupResult(None, 0, 0, 0)]
)
async def test_without_a_result_the_run_ends(
    result: Failure | GroupResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        surveys.answers["discriminate"] = lambda task: surveys.outcome(task, result=result)
        with pytest.raises(RunError, match="how far the clients' data are apart was not found"):
            await profile.gather(1)
        assert not (tmp_path / "distances.json").exists()


def _only(name: str, array: np.ndarray) -> Weights:
    return Weights.of({name: array}, (TensorSpec(name, str(array.dtype), array.shape, False),))


@pytest.mark.parametrize(
    "weights",
    [
        _only("clients", np.arange(4)),
        _only("distances", np.zeros((4, 4))),
        _only("w", np.zeros(3)),
        found((0, 1, 2), np.zeros((4, 4))),
        found((0, 1, 2, 3), np.zeros(4)),
        found((0, 1, 2, 3), np.zeros((5, 5))[:4]),
    ],
)
async def test_a_result_that_is_no_matrix_of_clients_ends_the_run(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        surveys.answers["discriminate"] = lambda task: surveys.outcome(task, result=surveys.made(weights))
        with pytest.raises(RunError, match="cannot be used; run the same version everywhere"):
            await profile.gather(1)


@pytest.mark.parametrize("matrix_", [np.full((4, 4), np.nan), np.zeros((50, 50))], ids=["NaN", "too large"])
async def test_a_result_that_is_not_taken_ends_the_run(
    matrix_: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        result = surveys.made(found(tuple(range(len(matrix_))), matrix_))
        surveys.answers["discriminate"] = lambda task: surveys.outcome(task, result=result)
        with pytest.raises(RunError, match="was not found"):
            await profile.gather(1)


async def test_the_manager_may_forget_what_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        await profile.gather(1)
        assert len(surveys.stage.made) == 0
