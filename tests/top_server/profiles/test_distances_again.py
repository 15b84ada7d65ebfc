"""Distances of clients that fail while they are measured: asked again in the next round, and not for ever."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import FailureCode
from tests.support.measured import failing, lacking, matrix, measuring, same
from tests.support.surveyed import Surveys
from top_server.groups.lost import AllLostError
from top_server.profiles.distances import MOST_LOSSES, MOST_TRIES

KINDS = pytest.mark.parametrize("distance", ["pairwise", "shared"])


def newcomers(surveys: Surveys) -> list[tuple[int, ...]]:
    """Of each measurement, as the manager was told."""
    return [task.discrimination.newcomers for task in surveys.asked if task.discrimination is not None]


@KINDS
async def test_who_failed_is_not_known_and_measured_again_in_the_next_round_as_a_newcomer(
    distance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, distance=distance) as (surveys, profile):
        failing(surveys, 1)
        first = await profile.gather(1)
        assert same(first, lacking((0, 1, 2, 3), 1))
        assert first.newcomers == ()
        failing(surveys)
        second = await profile.gather(2)
        assert same(second, matrix((0, 1, 2, 3)))
        assert second.newcomers == (1,)
        assert (await profile.gather(3)).newcomers == ()
        assert [task.clients for task in surveys.asked] == [(0, 1, 2, 3)] * 2
        assert newcomers(surveys) == [(), () if distance == "shared" else (1,)]


async def test_who_fails_again_and_again_is_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        failing(surveys, 2)
        told = [(await profile.gather(number)).newcomers for number in range(1, MOST_TRIES + 3)]
        assert told == [(), *[(2,)] * (MOST_TRIES - 1), (), ()]
        assert len(surveys.asked) == MOST_TRIES == 3
        assert same(await profile.gather(9), lacking((0, 1, 2, 3), 2))


async def test_who_is_lost_again_and_again_is_asked_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may be cut off for some seconds of every measurement."""
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        for number in range(1, MOST_TRIES + 2):
            failing(surveys, 2, code=FailureCode.NODE_LOST)
            assert same(await profile.gather(number), lacking((0, 1, 2, 3), 2))
        saved, profile = profile.save(), surveys.stage.profile("distances")
        profile.restore(saved)  # as a resumed run does
        failing(surveys)
        assert same(await profile.gather(MOST_TRIES + 2), matrix((0, 1, 2, 3)))


async def test_who_is_always_lost_is_given_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        failing(surveys, 2, code=FailureCode.UNREACHABLE)
        for number in range(1, MOST_LOSSES + 3):
            await profile.gather(number)
        assert len(surveys.asked) == MOST_LOSSES
        last = surveys.stage.journal.of_kind("not_compared")[-1]
        assert (last["client"], last["reason"]) == (2, "it was skipped, and is not asked again")


async def test_what_is_known_of_a_client_stays_when_it_fails_as_the_partner_of_a_newcomer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=3) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c7=40)
        failing(surveys, 1)
        evidence = await profile.gather(2)
        expected = matrix((0, 1, 2, 7))
        expected[1, 3] = expected[3, 1] = np.nan
        assert same(evidence, expected)
        assert evidence.newcomers == (7,)
        told = surveys.stage.journal.of_kind("not_compared")
        assert [(event["client"], event["reason"]) for event in told] == [
            (1, "it was skipped; its distances to newcomers stay unknown")
        ]
        assert [event["clients"] for event in surveys.stage.journal.of_kind("distances_found")][1:] == [[0, 2, 7]]
        # it has been measured once, and so has the newcomer
        assert (await profile.gather(3)).newcomers == ()
        assert len(surveys.asked) == 2


async def test_newcomers_are_told_after_the_first_round_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        assert (await profile.gather(1)).newcomers == ()
        await surveys.join("late", c7=40, c8=1)
        assert (await profile.gather(2)).newcomers == (7, 8)
        assert (await profile.gather(3)).newcomers == ()
        assert newcomers(surveys) == [(), (7,)]
        assert [event["client"] for event in surveys.stage.journal.of_kind("not_compared")] == [8]


async def test_of_clients_that_are_away_all_is_known_but_their_distances_to_newcomers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        leaving = await surveys.join("leaving", c3=30)
        assert (await profile.gather(1)).away == {}
        await surveys.stage.context.membership.leave(leaving, "its stream was lost")
        await surveys.join("late", c7=40)
        evidence = await profile.gather(2)
        assert (evidence.clients, evidence.newcomers, evidence.away) == ((0, 1, 3, 7), (7,), {3: 30})
        expected = matrix((0, 1, 3, 7))
        expected[2, 3] = expected[3, 2] = np.nan
        assert same(evidence, expected)


async def test_of_a_client_that_was_left_out_nothing_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, clients=3) as (surveys, profile):
        await profile.gather(1)
        for _ in range(3):
            surveys.stage.context.membership.note_offence(2)
        evidence = await profile.gather(2)
        assert (evidence.clients, evidence.away) == ((0, 1), {})


async def test_a_client_that_comes_back_with_other_data_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        node = await surveys.join("n7", c7=40)
        for number, samples, new in ((1, 40, ()), (2, 40, ()), (3, 90, (7,)), (4, 90, ())):
            await surveys.stage.context.membership.leave(node, "its stream was lost")
            node = await surveys.join("n7", c7=samples)
            assert (await profile.gather(number)).newcomers == new
        assert newcomers(surveys) == [(), (7,)]


async def test_newcomers_without_samples_let_nobody_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c7=1)
        assert same(await profile.gather(2), lacking((0, 1, 7), 7))
        assert len(surveys.asked) == 1
        assert json.loads((tmp_path / "distances.json").read_text())["clients"] == [0, 1, 7]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_run_in_which_nobody_can_be_compared_ends_with_the_last_reason(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        if number == 2:
            await profile.gather(1)
            await surveys.join("late", c7=40)
        failing(surveys, 0, 1, 2, 3, 7, reason="no labels at")
        with pytest.raises(RunError, match=r"no client's data could be told apart.*no labels at (3|7)"):
            await profile.gather(number)


async def test_two_that_can_be_compared_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        failing(surveys, 1, 2)
        assert same(await profile.gather(1), lacking((0, 1, 2, 3), 1, 2))
        told = surveys.stage.journal.of_kind("not_compared")
        assert [(event["client"], event["reason"]) for event in told] == [
            (client, "it was skipped, and is asked again in the next round") for client in (1, 2)
        ]


async def test_pairs_that_were_not_compared_are_null_in_the_record_and_measured_by_who_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        failing(surveys, 1)
        await profile.gather(1)
    text = (tmp_path / "distances.json").read_text()
    assert "NaN" not in text
    record = json.loads(text)
    assert record["clients"] == [0, 1, 2, 3]
    assert record["distances"][1] == [None, 0, None, None]
    (tmp_path / "kept.json").write_text(text)
    async with measuring(monkeypatch, tmp_path, distances=str(tmp_path / "kept.json")) as (surveys, profile):
        assert same(await profile.gather(1), matrix((0, 1, 2, 3)))
        assert newcomers(surveys) == [(1,)]


@pytest.mark.parametrize("number", [1, 2])
async def test_if_all_clients_are_lost_nothing_is_noted_and_the_same_pairs_are_measured_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measuring(monkeypatch, tmp_path) as (surveys, profile):
        if number == 2:
            await profile.gather(1)
        before = profile.save()
        await surveys.join("late", c7=40, c8=1)
        failing(surveys, 0, 1, 2, 3, 7, code=FailureCode.NODE_LOST)
        with pytest.raises(AllLostError, match="no client's data could be told apart"):
            await profile.gather(number)
        assert profile.save() == before
        failing(surveys)
        evidence = await profile.gather(number)
        assert same(evidence, lacking((0, 1, 2, 3, 7, 8), 8))
        assert evidence.newcomers == ((7, 8) if number == 2 else ())
        first, again = surveys.asked[-2:]
        assert first == again
