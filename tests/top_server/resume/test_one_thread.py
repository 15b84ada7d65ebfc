"""What the event loop uses is used by the event loop alone, however long a thread beside it takes."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.means.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.transfers.model_store import ModelStore
from tests.support.recorder import Recorder
from tests.support.scripted import model
from tests.support.staged import Stage, stage
from top_server.merging.base import GroupModel
from top_server.merging.one_model import OneModel
from top_server.models import Changes, Models, client_slot
from top_server.nodes.membership import Membership
from top_server.profiles.options import UpdateOptions
from top_server.profiles.updates import UpdateProfile
from top_server.record.directory import RunDirectory
from top_server.resume import state

LAYERS = (TensorSpec("one.weight", "float32", (2, 1)), TensorSpec("two.weight", "float32", (3, 2), head=True))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = threading.get_ident()

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            assert threading.get_ident() == loop, f"{function.__name__} in a thread"
            return function(*arguments, **named)

        return call

    for kind, names in {
        ModelStore: ("put", "release", "held"),
        Models: ("put", "apply"),
        Recorder: ("record",),
    }.items():
        for name in names:
            monkeypatch.setattr(kind, name, checked(getattr(kind, name)))
    clients: Any = vars(Membership)["clients"]
    monkeypatch.setattr(Membership, "clients", property(checked(clients.fget)))


async def with_updates(s: Stage, **options: str) -> UpdateProfile:
    row = dataclasses.replace(s.context.scheme, options={"profile": options})
    s.context = dataclasses.replace(s.context, scheme=row)
    profile = s.profile("updates")
    s.current = profile
    await profile.gather(1)
    for client in s.context.membership.clients:
        vector = np.arange(profile.updates.length, dtype=np.float32) * client
        assert profile.updates.keep(client, vector) == ""
    return profile


async def test_a_state_is_saved_and_restored(tmp_path: Path) -> None:
    async with stage("none", run_dir=tmp_path) as before:
        profile = await with_updates(before)
        before.context.models.put([client_slot(0)], "run/1/0", model(5.0))
        await before.save(tmp_path, 1)
        profile.close()
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    async with stage("none", run_dir=tmp_path) as after:
        after.current = after.profile("updates")
        await after.restore(saved)
        assert await after.value(after.of(0)) == 5.0
        after.current.close()


async def test_a_layer_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage("none", run_dir=tmp_path) as s:
        monkeypatch.setattr(Membership, "tensors", LAYERS)
        profile = await with_updates(s, similarity="layer")
        whole = profile.updates
        evidence = await profile.gather(2)
        assert profile.updates is not whole
        (chosen,) = s.journal.of_kind("layer_chosen")
        assert evidence.reveal is not None
        assert evidence.reveal.view == f"layer:{chosen['layer']}"
        assert set(chosen["scores"]) == {"one", "two"}
        profile.close()


async def test_a_merge_works_in_a_thread_and_the_loop_puts_its_models_into_slots() -> None:
    loop, threads = threading.get_ident(), []

    class Noted(OneModel):
        def fold(self, round_number: int, group: GroupModel) -> Changes:
            threads.append(threading.get_ident())
            return super().fold(round_number, group)

        def finish(self, round_number: int) -> Changes:
            threads.append(threading.get_ident())
            return super().finish(round_number)

    async with stage("mean") as s:
        s.merging = Noted(s.merging.settings, partial(Mean, weighted=False))
        assert await s.take(1, await s.trained((0, 1), 5.0)) is None
        await s.finish(1)
        assert await s.value(s.of(0)) == 5.0
    assert len(threads) == 2
    assert loop not in threads


async def test_who_leaves_while_a_state_is_written_is_in_it(tmp_path: Path) -> None:
    """A snapshot: of before, whole."""
    leave, left = threading.Event(), threading.Event()

    class Slow(UpdateProfile):
        def write(self, folder: Path) -> None:
            leave.set()
            assert left.wait(30)
            super().write(folder)

    async with stage("none", run_dir=tmp_path) as s:
        s.current = Slow(s.context, s.progress, s.merging, UpdateOptions())
        async with asyncio.TaskGroup() as group:
            group.create_task(s.save(tmp_path, 1))
            await asyncio.to_thread(leave.wait, 30)
            for _ in range(3):
                s.context.membership.note_offence(2)
            s.progress.began[9] = 1
            left.set()
        assert 2 not in s.context.membership.clients
        s.current.close()
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    assert (saved.clients, saved.document["progress"]["began"], saved.offences) == ((0, 1, 2, 3), {}, {})
