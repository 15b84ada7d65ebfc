"""One global model, the mean of the groups' models."""

from __future__ import annotations

import pytest

from fedgsp.messages import Failure, FailureCode, GroupResult, ModelRef
from tests.support.staged import START, Stage, stage
from top_server.evidence import Evidence
from top_server.models import INITIAL

EVIDENCE = Evidence((0, 1, 2, 3))


async def merged(s: Stage, *groups: tuple[tuple[int, ...], float], round_number: int = 1) -> float:
    await s.begin(round_number, EVIDENCE)
    for number, (clients, value) in enumerate(groups):
        assert await s.take(round_number, await s.trained(clients, value, number)) is None
    await s.finish(round_number)
    return await s.value(s.of(0))


async def test_everybody_starts_from_the_global_model_which_is_the_initial_one_at_first() -> None:
    async with stage("mean") as s:
        starts = s.start((0, 1))
        assert [(await s.value(held), weight) for held, weight in starts] == [(START, 1.0)]
        assert INITIAL not in s.context.models


@pytest.mark.parametrize(("merge", "expected"), [("mean", 2.0), ("weighted-mean", (21 * 1.0 + 12 * 3.0) / 33)])
async def test_the_groups_count_alike_or_by_the_samples_behind_them(merge: str, expected: float) -> None:
    async with stage(merge) as s:
        assert await merged(s, ((0, 1), 1.0), ((2,), 3.0)) == expected


@pytest.mark.parametrize(
    ("merge", "trim", "expected"),
    [("median", {}, 3.0), ("trimmed-mean", {"trim": "0.25"}, 3.0), ("trimmed-mean", {}, 249_999_999.0)],
)
async def test_a_group_that_goes_astray_is_left_out_whatever_its_samples(
    merge: str, trim: dict[str, str], expected: float
) -> None:
    async with stage(merge, options=trim) as s:
        groups = [((0,), 4.0), ((3,), 1e9), ((1,), 2.0), ((2,), -10.0)]
        assert await merged(s, *groups) == expected
        assert await merged(s, ((0, 1), 7.0), round_number=2) == 7.0  # nothing is left of the first round


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 1.27118644), ({"times": "samples"}, 1.99415205), ({"norm": "none"}, 5 / 3)]
)
async def test_a_group_far_from_the_others_may_count_less(options: dict[str, str], expected: float) -> None:
    async with stage("ida", options=options) as s:
        found = await merged(s, ((0,), 0.0), ((1,), 1.0), ((0, 1, 2), 4.0))
        assert found == pytest.approx(expected, abs=5.1e-9)


async def test_only_the_newest_global_model_is_held_here_and_at_the_manager_none() -> None:
    async with stage("mean") as s:
        for number, value in enumerate((2.0, 3.0), 1):
            assert await merged(s, ((0,), value), round_number=number) == value
            assert (len(s.store), len(s.made)) == (1, 0)


async def test_a_group_without_a_model_does_not_count() -> None:
    async with stage("mean") as s:
        await s.begin(1, EVIDENCE)
        failure = Failure(FailureCode.TASK_RAISED, "no member trained")
        assert await s.take(1, s.outcome("parallel", failure)) == failure
        without = s.outcome("parallel", GroupResult(ModelRef(""), 0, 0, 0))
        assert await s.take(1, without) == Failure(FailureCode.NO_SUCH_MODEL, "the group ended without a model")
        await s.take(1, await s.trained((1,), 5.0))
        await s.finish(1)
        assert await s.value(s.of(3)) == 5.0
