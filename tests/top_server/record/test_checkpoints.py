"""What of a run's models is on disk, whoever is still there."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, MemberDone, MemberSkipped, ModelRef, Trained
from tests.support.scripted import model
from tests.support.staged import START, Stage, stage
from tests.support.surveyed import Surveys, surveyed
from top_server.best import Best
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.record.checkpoints import save
from top_server.record.model_files import load

AWAY = Failure(FailureCode.NODE_LOST, "its node left")
FULL = Failure(FailureCode.UNSPECIFIED, "the group manager is full")


def saved(directory: Path) -> dict[str, tuple[float, tuple[int, ...]]]:
    found = {}
    for path in directory.glob("*.safetensors"):
        tensors, origin = load(path)
        found[path.stem] = (float(tensors["w"][0]), origin.clients)
    return found


async def saved_after(play: Stage, folder: Path, number: int) -> None:
    last = number == play.context.config.rounds
    await save(play.context, play.progress, play.merging, folder, number, last)


async def everybody_leaves(play: Stage) -> None:
    (node,) = play.context.membership._nodes.values()
    await play.context.membership.leave(node, "gone")
    assert not play.context.membership.clients


async def test_a_model_per_group_names_its_clients_also_when_they_have_gone(tmp_path: Path) -> None:
    async with stage("none", rounds=2) as play:
        for number, (clients, value) in enumerate([((0, 1), 5.0), ((2, 3), 7.0)]):
            await play.take(1, await play.trained(clients, value, number))
        await saved_after(play, tmp_path, 1)
        assert saved(tmp_path) == {
            "round-0001-group-0000": (5.0, (0, 1)),
            "round-0001-group-0002": (7.0, (2, 3)),
        }
        await everybody_leaves(play)
        await saved_after(play, tmp_path, 2)
        assert saved(tmp_path) == {"final-group-0000": (5.0, (0, 1)), "final-group-0002": (7.0, (2, 3))}


async def test_a_model_that_all_groups_share_is_one_file_that_names_them(tmp_path: Path) -> None:
    async with stage("none", rounds=1) as play:
        await play.take(1, await play.trained((0, 1, 2, 3), 5.0))
        await saved_after(play, tmp_path, 1)
        assert saved(tmp_path) == {"final": (5.0, (0, 1, 2, 3))}


async def test_a_model_that_nobody_trained_is_not_saved_and_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage("none", rounds=2) as play:
        await saved_after(play, tmp_path, 1)
        assert saved(tmp_path) == {}
        await play.take(1, await play.trained((0, 1), 5.0))
        await saved_after(play, tmp_path, 1)
        assert saved(tmp_path) == {"round-0001": (5.0, (0, 1))}
        assert not play.journal.of_kind("model_not_saved")
        await saved_after(play, tmp_path, 2)
        assert saved(tmp_path) == {"final": (5.0, (0, 1))}
        assert [event["client"] for event in play.journal.of_kind("model_not_saved")] == [2, 3]
        assert "no trained model is saved for clients: 2, 3" in caplog.text


@pytest.mark.parametrize("merge", ["mean", "weighted-mean"])
async def test_a_global_model_is_saved_when_all_clients_have_gone(tmp_path: Path, merge: str) -> None:
    async with stage(merge, rounds=1) as play:
        await everybody_leaves(play)
        await saved_after(play, tmp_path, 1)
        assert saved(tmp_path) == {"final": (START, ())}


async def test_a_run_whose_models_all_are_out_of_reach_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, merge="none", rounds=1) as surveys:
        play = surveys.stage
        refs = {client: ModelRef(f"run/1/0/alone/{client}.0") for client in (0, 1)}
        await play.take(1, play.alone(refs))
        gone = tuple(MemberSkipped(client, Failure(FailureCode.NODE_LOST, "its node left")) for client in refs)
        surveys.answers["collect"] = lambda task: surveys.outcome(task, skipped=gone)
        with pytest.raises(RunError, match="no model could be saved; see model_not_saved"):
            await saved_after(play, tmp_path, 1)
        assert [event["client"] for event in play.journal.of_kind("model_not_saved")] == [0, 1]


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_model_that_cannot_be_taken_ends_the_run_after_its_last_round_only(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, merge="none", rounds=rounds, keep_models="all") as surveys:
        play, lost = surveys.stage, Failure(FailureCode.UNREACHABLE, "its manager is gone")
        await play.take(1, play.alone({client: ModelRef(f"run/1/0/alone/{client}.0") for client in (0, 1)}))
        skipped = tuple(MemberSkipped(client, lost) for client in (0, 1))  # as of all whose models do not come here
        surveys.answers["collect"] = lambda task: surveys.outcome(
            task, models=dict.fromkeys(task.clients, lost), skipped=skipped
        )
        if rounds == 1:
            with pytest.raises(
                RunError, match="the models of clients 0, 1 cannot be saved: unreachable: its manager is gone"
            ):
                await saved_after(play, tmp_path, 1)
        else:
            await saved_after(play, tmp_path, 1)
            assert saved(tmp_path) == {}
            told = play.journal.of_kind("model_not_saved")
            assert [(event["client"], event["reason"]) for event in told] == [(0, str(lost)), (1, str(lost))]


def collecting(surveys: Surveys, fails: int, without: int | None = None) -> None:
    """So many times the question for the models ends after the first one: the manager is full.

    The node of client `without` is away.
    """
    tries = itertools.count()

    def collect(task: GroupTask) -> GroupOutcome:
        ended = next(tries) < fails
        clients = [one for one in (task.clients[:1] if ended else task.clients) if one != without]
        skipped = tuple(MemberSkipped(one, AWAY) for one in task.clients if one == without)
        done = tuple(MemberDone(client, 0, Trained(task.own_starts[client].ref)) for client in clients)
        result = {"result": FULL} if ended else {}
        models = {client: model(5.0 + client) for client in clients}
        return surveys.outcome(task, models=models, done=done, skipped=skipped, **result)

    surveys.answers["collect"] = collect


@asynccontextmanager
async def three_alone(monkeypatch: pytest.MonkeyPatch, **config: Any) -> AsyncIterator[Surveys]:
    """Three of the clients have trained alone, and their nodes hold the models."""
    async with surveyed(monkeypatch, merge="none", **config) as surveys:
        refs = {client: ModelRef(f"run/1/0/alone/{client}.0") for client in (0, 1, 2)}
        await surveys.stage.take(1, surveys.stage.alone(refs))
        yield surveys


def not_saved(surveys: Surveys) -> list[tuple[int, str]]:
    return [(event["client"], event["reason"]) for event in surveys.stage.journal.of_kind("model_not_saved")]


async def test_models_that_a_full_manager_did_not_collect_are_asked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_alone(monkeypatch, rounds=1) as surveys:
        collecting(surveys, fails=1)
        await saved_after(surveys.stage, tmp_path, 1)
        assert saved(tmp_path) == {f"final-group-000{client}": (5.0 + client, (client,)) for client in (0, 1, 2)}
        assert [task.clients for task in surveys.of("collect")] == [(0, 1, 2), (1, 2)]
        assert [client for client, _ in not_saved(surveys)] == [3], "that one never trained"


async def test_a_run_whose_last_models_cannot_be_collected_ends_so_that_it_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_alone(monkeypatch, rounds=1) as surveys:
        collecting(surveys, fails=2)
        with pytest.raises(RunError, match=f"the models of clients 2 cannot be saved: {FULL}; mend the cause, then"):
            await saved_after(surveys.stage, tmp_path, 1)
        assert not_saved(surveys) == [(2, str(FULL))]
        assert saved(tmp_path) == {}


async def test_before_the_last_round_the_run_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_alone(monkeypatch, rounds=2, keep_models="all") as surveys:
        collecting(surveys, fails=2)
        await saved_after(surveys.stage, tmp_path, 1)
        assert not_saved(surveys) == [(2, str(FULL))]
        assert sorted(saved(tmp_path)) == ["round-0001-group-0000", "round-0001-group-0001"]


def rounds_of_best(directory: Path) -> dict[str, int]:
    return {path.stem: load(path)[1].round for path in directory.glob("best*")}


async def test_the_best_models_stay_if_not_all_of_a_better_round_can_be_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_alone(monkeypatch, rounds=9, keep_models="best") as surveys:
        found = []
        for number, fails in [(1, 2), (2, 0), (3, 2), (4, 0)]:
            surveys.stage.progress.best = Best(0.1 * number, number)
            collecting(surveys, fails)
            await saved_after(surveys.stage, tmp_path, number)
            found.append(rounds_of_best(tmp_path))
    names = [f"best-group-000{client}" for client in (0, 1, 2)]
    whole = [dict.fromkeys(names, number) for number in (2, 2, 4)]
    assert found == [dict.fromkeys(names[:2], 1), *whole], "of the first round, some are better than none"


@pytest.mark.parametrize("last", [True, False])
async def test_a_model_whose_transfer_broke_off_is_asked_for_once_more(
    last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Failure(FailureCode.UNREACHABLE, "manager m3 is lost")
    async with three_alone(monkeypatch, rounds=2 if last else 9, keep_models="best") as surveys:
        surveys.stage.progress.best = Best(0.1, 1)
        collecting(surveys, fails=0)
        await saved_after(surveys.stage, tmp_path, 1)
        surveys.stage.progress.best = Best(0.2, 2)
        collecting(surveys, fails=0)
        whole = surveys.answers["collect"]

        def broken_off(task: GroupTask) -> GroupOutcome:
            surveys.answers["collect"] = whole
            done = (MemberDone(0, 0, Trained(task.own_starts[0].ref)),)
            return surveys.outcome(task, models={0: lost}, done=done, skipped=(MemberSkipped(0, lost),), result=lost)

        surveys.answers["collect"] = broken_off
        await saved_after(surveys.stage, tmp_path, 2)
        assert [task.clients for task in surveys.of("collect")[1:]] == [(0, 1, 2), (0, 1, 2)]
        assert rounds_of_best(tmp_path) == {f"best-group-000{client}": 2 for client in (0, 1, 2)}


async def test_a_client_that_has_left_for_good_does_not_keep_the_best_models_of_the_others_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_alone(monkeypatch, rounds=9, keep_models="best") as surveys:
        for number in (1, 2):
            surveys.stage.progress.best = Best(0.1 * number, number)
            collecting(surveys, fails=0, without=2 if number == 2 else None)
            await saved_after(surveys.stage, tmp_path, number)
        assert rounds_of_best(tmp_path) == {"best-group-0000": 2, "best-group-0001": 2}
        assert not_saved(surveys) == [(2, str(AWAY))]


async def test_the_last_models_of_the_shorter_run_are_replaced_where_a_run_was_extended(tmp_path: Path) -> None:
    async with stage("none", rounds=1, keep_models="all") as play:
        for number, (clients, value) in enumerate([((0, 1), 5.0), ((2, 3), 7.0)]):
            await play.take(1, await play.trained(clients, value, number))
        await saved_after(play, tmp_path, 1)
        assert {"final-group-0000", "final-group-0002"} < saved(tmp_path).keys()
        await play.take(2, await play.trained((0, 1, 2, 3), 9.0))
        await saved_after(play, tmp_path, 1)
        assert [name for name in saved(tmp_path) if name.startswith("final")] == ["final"]


@pytest.mark.parametrize("keep", ["last", "all"])
async def test_the_models_of_earlier_rounds_stay_only_where_they_are_wanted(tmp_path: Path, keep: str) -> None:
    async with stage("none", rounds=3, keep_models=keep) as play:
        await play.take(1, await play.trained((0, 1, 2, 3), 5.0))
        for number in (1, 2, 3):
            await saved_after(play, tmp_path, number)
            assert ("final" if number == 3 else f"round-000{number}") in saved(tmp_path)
        kept = ["round-0001", "round-0002", "round-0003"] if keep == "all" else []
        assert sorted(saved(tmp_path)) == ["final", *kept]


@pytest.mark.parametrize("keep", ["last", "all"])
async def test_models_that_nodes_hold_are_fetched_after_each_round_whose_models_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    async with surveyed(monkeypatch, merge="none", rounds=3, keep_models=keep) as surveys:
        play, values = surveys.stage, iter([5.0, 7.0, 9.0])
        refs = {client: ModelRef(f"run/1/0/alone/{client}.0") for client in (0, 1)}
        await play.take(1, play.alone(refs))

        def collected(task: GroupTask) -> GroupOutcome:
            value = next(values)
            return surveys.outcome(task, models={client: model(value + client) for client in task.clients})

        surveys.answers["collect"] = collected
        for number in (1, 2, 3):
            await saved_after(play, tmp_path, number)
        names = ["round-0001", "round-0002", "round-0003", "final"] if keep == "all" else ["final"]
        files = {f"{name}-group-000{client}" for name in names for client in refs}
        assert saved(tmp_path).keys() == files
        assert [task.clients for task in surveys.of("collect")] == [(0, 1)] * (3 if keep == "all" else 1)
        if keep == "all":
            assert saved(tmp_path)["round-0002-group-0001"] == (8.0, (1,))


async def test_the_models_of_the_best_round_stay_until_a_better_one(tmp_path: Path) -> None:
    async with stage("none", rounds=4, keep_models="best") as play:
        await play.take(1, await play.trained((0, 1), 5.0, 0))
        await play.take(1, await play.trained((2, 3), 7.0, 1))
        play.progress.best = Best(0.5, 1)
        await saved_after(play, tmp_path, 1)
        assert saved(tmp_path)["best-group-0002"] == (7.0, (2, 3))
        await play.take(2, await play.trained((0, 1, 2, 3), 9.0))
        await saved_after(play, tmp_path, 2)
        assert sorted(saved(tmp_path)) == ["best-group-0000", "best-group-0002", "round-0002"]
        play.progress.best = Best(0.6, 3)
        await saved_after(play, tmp_path, 3)
        assert sorted(saved(tmp_path)) == ["best", "round-0003"]
        await saved_after(play, tmp_path, 4)
        assert sorted(saved(tmp_path)) == ["best", "final"]
