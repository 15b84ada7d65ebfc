"""What is saved after a round puts another top server where the first one was."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from fedgsp.errors import DataError, RunError
from fedgsp.messages import ModelRef, TensorSpec
from tests.support.scripted import TENSORS, model, value_of
from tests.support.staged import Stage, stage
from top_server.grouping import Plan
from top_server.models import Held, client_slot
from top_server.profiles import PROFILES
from top_server.record import model_files
from top_server.record.directory import RunDirectory
from top_server.resume import state


@asynccontextmanager
async def staged(folder: Path, merge: str, profile: str) -> AsyncIterator[Stage]:
    async with stage(merge, run_dir=folder) as s:
        s.current = s.profile(profile)
        try:
            yield s
        finally:
            s.current.close()


async def test_models_groups_and_what_is_known_are_there_again(tmp_path: Path) -> None:
    at_home = Held(ModelRef("run/3/own", 8, b"d" * 16), 3)
    async with staged(tmp_path, "none", "histograms") as before:
        before.context.models.put([client_slot(0), client_slot(1)], "run/3/0", model(5.0))
        before.context.models.apply({client_slot(3): at_home})
        before.progress.plan = Plan(((0, 1), (3,)), (2,))
        before.current.restore({"known": {"0": [1, 2], "3": [4, 5]}})
        before.progress.local_models[3] = at_home
        before.progress.afresh.add(2)
        before.context.membership.note_offence(1)
        await before.save(tmp_path, 3)
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    assert (saved.round, saved.clients, saved.offences) == (3, (0, 1, 2, 3), {1: 1})
    async with staged(tmp_path, "none", "histograms") as after:
        await after.restore(saved)
        assert await after.value(after.of(0)) == 5.0
        assert after.of(0) == after.of(1)
        assert after.of(3) == at_home
        assert await after.value(after.of(2)) == 1.0  # the initial model
        assert after.progress.plan == Plan(((0, 1), (3,)), (2,))
        assert after.current.histograms == {0: (1, 2), 3: (4, 5)}
        assert after.progress.local_models == {3: at_home}
        assert after.progress.afresh == {2}


async def test_a_model_that_is_a_checkpoint_is_not_written_twice(tmp_path: Path) -> None:
    async with staged(tmp_path, "mean", "none") as s:
        file = tmp_path / "round-0001.safetensors"
        held = s.of(0)
        model_files.save(file, s.context.models.weights(held).arrays, model_files.Origin("run", "fedgsp", 1, 0))
        await s.save(tmp_path, 1, {held.ref.id: file})
        (linked,) = (tmp_path / "state").glob("*/model-*")
        assert linked.samefile(file)


async def test_the_last_two_states_stay_and_a_cut_one_does_not_count(tmp_path: Path) -> None:
    async with staged(tmp_path, "mean", "none") as s:
        for number in (1, 2, 3):
            await s.save(tmp_path, number)
        (tmp_path / "state" / ".writing").mkdir()
        folders = sorted((tmp_path / "state").glob("round-*"))
        assert [path.name for path in folders] == ["round-0002", "round-0003"]
        for expected in (3, 2):
            saved = state.latest(RunDirectory(tmp_path))
            assert saved is not None
            assert saved.round == expected
            (folders[expected - 2] / "state.json").write_text("")  # as a power cut may leave it


async def test_round_ten_thousand_comes_after_the_one_before_it(tmp_path: Path) -> None:
    async with staged(tmp_path, "mean", "none") as s:
        for number in (9_998, 9_999, 10_000, 10_001):
            await s.save(tmp_path, number)
            saved = state.latest(RunDirectory(tmp_path))
            assert saved is not None
            assert saved.round == number
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"round-10000", "round-10001"}


def test_without_a_state_there_is_none(tmp_path: Path) -> None:
    assert state.latest(RunDirectory(tmp_path)) is None


async def test_chosen_clusters_are_known_again(tmp_path: Path) -> None:
    async with staged(tmp_path, "clusters", "none") as before:
        before.merging.restore({"chosen": {"0": 1, "2": 3}}, {})
        await before.save(tmp_path, 1)
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    async with staged(tmp_path, "clusters", "none") as after:
        await after.restore(saved)
        assert after.merging.state() == ({"chosen": {0: 1, 2: 3}}, {})


async def test_updates_give_the_same_inner_products(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 1)).astype(np.float32)
    async with staged(tmp_path, "none", "updates") as before:
        for client, vector in enumerate(vectors):
            assert before.current.updates.keep(client, vector) == ""
        gram = before.current.updates.spool.gram([0, 1, 2, 3])
        await before.save(tmp_path, 1)
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    async with staged(tmp_path, "none", "updates") as after:
        await after.restore(saved)
        np.testing.assert_array_equal(after.current.updates.spool.gram([0, 1, 2, 3]), gram)
        assert after.current.updates.rounds == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("profile", sorted(PROFILES))
async def test_every_profile_comes_back_as_it_was(tmp_path: Path, profile: str) -> None:
    async with staged(tmp_path, "none", profile) as before:
        await before.save(tmp_path, 1)
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    async with staged(tmp_path, "none", profile) as after:
        await after.restore(saved)
        again = after.current.save()
        assert json.loads(json.dumps(again)) == saved.document["profile"]


async def test_known_distances_are_not_measured_again(tmp_path: Path) -> None:
    known = {
        "known": [[0, 1, 0.5, 0.125], [1, 0, 0.5, 0.125], [0, 2, 0.25, None], [2, 0, 0.25, None]],
        "met": [0, 1],
        "samples": 5,
        "sizes": {"0": 10},
        "failures": {"2": 1},
        "losses": {"3": 2},
    }
    async with staged(tmp_path, "none", "distances") as s:
        s.current.restore({**known, "spent": [1.5, 7]})
        assert json.loads(json.dumps(s.current.save())) == {**known, "spent": [1.5, 7]}
        older = {name: value for name, value in known.items() if name != "losses"}
        s.current.restore({**older, "spent": [1.5, 7]})
        assert s.current.save()["losses"] == {}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("file", ["state.json", "model-0.safetensors", "update-1.npy"])
@pytest.mark.parametrize("damage", [cut, Path.unlink])
async def test_a_damaged_state_is_named_and_the_state_before_is_used(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    async with staged(tmp_path, "none", "updates") as before:
        for number in (1, 2):
            before.current.updates.keep(1, np.array([number], np.float32))
            await before.save(tmp_path, number)
    damage(tmp_path / "state" / "round-0002" / file)
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    assert saved.round == 1
    (named,) = saved.damaged
    assert f"round-0002/{file}" in named
    async with staged(tmp_path, "none", "updates") as after:
        await after.restore(saved)
        np.testing.assert_array_equal(after.current.updates.spool.gram([1]), [[1.0]])
    damage(tmp_path / "state" / "round-0001" / file)
    with pytest.raises(DataError, match=r"round-0002.*round-0001.*; restore one of these states, or start the run"):
        state.latest(RunDirectory(tmp_path))


async def again(s: Stage, folder: Path) -> None:
    saved = state.latest(RunDirectory(folder))
    assert saved is not None
    await s.restore(saved)


@pytest.mark.parametrize("damage", ["cut", "empty", "list", "other", "missing", "key"])
async def test_a_damaged_state_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    async with staged(tmp_path, "mean", "none") as s:
        await s.save(tmp_path, 1)
        folder = tmp_path / "state" / "round-0001"
        match damage:
            case "cut":
                (folder / "state.json").write_text('{"clients"')
            case "empty":
                (folder / "state.json").write_text("{}")
            case "list":
                (folder / "state.json").write_text("[]")
            case "other":
                origin = model_files.Origin("run", "fedgsp", 1, 0)
                model_files.save(folder / "model-0.safetensors", model(7.0).arrays, origin)
            case "missing":
                (folder / "model-0.safetensors").unlink()
            case "key":
                (folder / "state.json").write_text('{"clients": [], "offences": {}, "config": "", "slots": {}}')
        with pytest.raises(DataError, match="round-0001"):
            await again(s, tmp_path)


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ((TensorSpec("w", "float64", (2,)),), "tensor 'w' is float64[2], and in the run it is float64[1]"),
        ((*TENSORS, TensorSpec("b", "float64", (1,))), "tensor 'b' is float64[1], and in the run it is missing"),
        ((), "tensor 'w' is missing, and in the run it is float64[1]"),
    ],
)
async def test_nodes_with_another_model_are_to_blame_and_not_the_state(
    tmp_path: Path, tensors: tuple[TensorSpec, ...], what: str
) -> None:
    async with staged(tmp_path, "mean", "none") as s:
        await s.save(tmp_path, 1)
        s.context.membership._standard = dataclasses.replace(s.context.membership.standard, tensors=tensors)
        with pytest.raises(DataError) as caught:
            await again(s, tmp_path)
        assert what in caught.value.what
        assert caught.value.remedy == "start the nodes with the task and the options of the run, then resume it"


async def test_the_way_out_of_a_damaged_state_is_the_one_before(tmp_path: Path) -> None:
    async with staged(tmp_path, "mean", "none") as s:
        for number in (9_999, 10_000):
            await s.save(tmp_path, number)
        origin = model_files.Origin("run", "fedgsp", 10_000, 0)  # of the same length
        folder = tmp_path / "state" / "round-10000"
        model_files.save(folder / "model-0.safetensors", model(7.0).arrays, origin)
        with pytest.raises(DataError) as caught:
            await again(s, tmp_path)
        assert caught.value.remedy.endswith(f"or remove {folder}, and the run goes on from round 9999")


async def test_the_record_is_on_disk_before_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(state, "sync", synced.append)
    directory = RunDirectory(tmp_path)
    async with staged(tmp_path, "mean", "none") as s:
        record = [directory.config, directory.history, directory.events]
        for path in record:
            path.write_text("")
        await s.save(tmp_path, 1)
    assert synced[:3] == record
    assert synced[-1] == directory.state


async def test_a_run_that_is_stopped_waits_for_the_state_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its profile would be closed meanwhile, and the state would lack the updates of the clients."""
    begun, may_go_on, closed = threading.Event(), threading.Event(), []
    async with staged(tmp_path, "none", "updates") as s:
        assert s.current.updates.keep(0, np.ones(1, np.float32)) == ""
        save = s.current.updates.spool.save

        def slowly(folder: Path) -> None:
            begun.set()
            assert may_go_on.wait(30)
            save(folder)

        monkeypatch.setattr(s.current.updates.spool, "save", slowly)

        async def played() -> None:
            try:
                await s.save(tmp_path, 1)
            finally:
                s.current.close()
                closed.append(True)

        playing = asyncio.create_task(played())
        await asyncio.to_thread(begun.wait)
        playing.cancel()
        await asyncio.sleep(0)
        assert not closed
        may_go_on.set()
        await asyncio.gather(playing, return_exceptions=True)
    assert (tmp_path / "state" / "round-0001" / "update-0.npy").exists()


async def test_a_state_without_the_updates_of_its_clients_is_damaged(tmp_path: Path) -> None:
    async with staged(tmp_path, "none", "updates") as s:
        assert s.current.updates.keep(3, np.ones(1, np.float32)) == ""
        s.current.updates.spool.forget(3)
        await s.save(tmp_path, 1)
        with pytest.raises(DataError, match="the updates of clients 3 are missing"):
            await again(s, tmp_path)


async def test_a_disk_that_takes_no_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "state").mkdir(parents=True)
    async with staged(tmp_path / "run", "mean", "none") as s:
        (tmp_path / "run" / "state" / ".writing").write_text("a file where a folder is needed")
        with pytest.raises(RunError, match="cannot be written"):
            await s.save(tmp_path / "run", 1)
        assert value_of(s.context.models.weights(s.of(0))) == 1.0


@pytest.mark.parametrize("keep", [True, False])
async def test_the_state_of_a_finished_run_is_there_for_an_extension_alone_or_gone(tmp_path: Path, keep: bool) -> None:
    directory = RunDirectory(tmp_path)
    async with staged(tmp_path, "none", "none") as s:
        for number in (1, 2):
            await s.save(tmp_path, number)
    (directory.state / "node-0").mkdir()
    assert state.is_in(directory)
    state.close(directory, keep)
    assert not state.is_in(directory)
    if not keep:
        assert not directory.state.exists()
        return
    assert sorted(path.name for path in directory.state.iterdir()) == ["finished-0002", "node-0"]
    saved = state.latest(directory)
    assert saved is not None
    assert saved.round == 2
    state.reopen(directory)
    state.reopen(directory)  # after it was cut off
    assert state.is_in(directory)


async def test_a_disk_that_is_slow_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise nobody could tell for what a run waits between two rounds."""
    async with staged(tmp_path, "mean", "none") as s:
        await s.save(tmp_path, 1)
        assert not caplog.records
        monkeypatch.setattr(state, "SLOW_S", 0.0)
        await s.save(tmp_path, 2)
    assert ["the disk took 0 s for the state of the run" in one.getMessage() for one in caplog.records] == [True]


@pytest.mark.parametrize("known", [{"0": [1, -2]}, {"0": [0, 0]}, {"0": [1], "1": [1, 2]}, {"0": [1 << 50]}], ids=str)
async def test_damaged_class_histograms_are_refused_before_the_next_round(
    known: dict[str, list[int]], tmp_path: Path
) -> None:
    async with staged(tmp_path, "none", "histograms") as stage:
        stage.current.restore({"known": {"0": [1, 2], "1": [3, 4]}})
        with pytest.raises((TypeError, ValueError)):
            stage.current.restore({"known": known})
