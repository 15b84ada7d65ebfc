"""A client whose result a group could not use goes on from the model that it started from."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import RunError
from fedgsp.messages import Order, OrderKey, Recall, Release, Reveal, Start, Train
from fedgsp_node.kept.own_models import OwnModels
from tests.support.working import HERE, OWN, ROUND, SETTINGS, no_receipt, node, why_not


async def test_a_result_that_its_group_lets_go_leaves_the_model_that_it_started_from() -> None:
    async with node() as n:
        await n.do(Train(Start("start", HERE), "r1", SETTINGS, retain=True))
        await n.do(Train(Start("r1", OWN), "r2", SETTINGS, retain=True))
        await n.worker.carry_out(Order(OrderKey(ROUND, "release", 0, 1), 0, Release(("r2",))), n._upload)
        assert "r1" in n.store  # the top server still starts the client's next round from it


async def test_a_model_that_stays_is_not_let_go_while_its_receipt_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that takes over a group asks at any moment, and may not know of the model yet."""
    writing, go_on, settle = threading.Event(), threading.Event(), OwnModels.settle

    def slow(*given: Any) -> None:
        writing.set()
        assert go_on.wait(10)
        settle(*given)

    monkeypatch.setattr(OwnModels, "settle", slow)
    async with node() as n:
        key = OrderKey(ROUND, "train", 0, 0, run="run")
        work = Train(Start("start", HERE), f"run/{ROUND}/0/own", SETTINGS, retain=True)
        training = asyncio.create_task(n.worker.carry_out(Order(key, 0, work), n._upload))
        assert await asyncio.to_thread(writing.wait, 10)
        asked = Order(dataclasses.replace(key, task="recall"), 0, Recall(f"run/{ROUND}/0/", ()))
        await n.worker.carry_out(asked, n._upload)
        go_on.set()
        await training
        assert work.produces in n.store


async def test_a_model_without_a_receipt_does_not_stay() -> None:
    async with node() as n:
        work = Train(Start("start", HERE), "own", SETTINGS, retain=True)
        with pytest.raises(RunError):
            await n.worker.carry_out(Order(OrderKey(ROUND, "train", 0, 0), 0, work), n._upload, no_receipt)
        assert "own" not in n.store


async def test_a_model_for_which_there_is_no_room_leaves_no_update_either(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        (tmp_path / ".run-client-0.model-next.safetensors.tmp").mkdir()  # where the model is to be written aside
        failure = await why_not(n.do(Train(Start("start", HERE), "own", SETTINGS, Reveal("exact"), retain=True)))
        assert "client-0.model-next.safetensors cannot be written" in failure.detail
        assert n.store.ids("own") == []
        assert await why_not(n.store.get("own")) == failure
