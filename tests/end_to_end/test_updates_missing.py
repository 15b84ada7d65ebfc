"""A client whose update is missing, or is none, stays alone until it shows one."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, Order, TensorSpec, Train, Trained
from fedgsp.tensors.weights import Weights
from fedgsp_node.order_error import OrderError
from fedgsp_node.trainer import Trainer
from tests.support.cluster import play
from tests.support.gated_task import ALPHA, gated_settings, host, oracle
from tests.support.managers_here import managers_here
from top_server import rounds
from top_server.groups.lost import AllLostError
from top_server.groups.taking import take

TRAIN = Trainer.carry_out


def one_vector(values: np.ndarray) -> Weights:
    return Weights.of({"update": values}, (TensorSpec("update", "float32", values.shape),))


BAD = {
    "too short": (one_vector(np.ones(5)), "has 5 numbers, not 99"),
    "none": (None, "it did not come to the group manager"),
    "not a number": (one_vector(np.full(99, np.nan)), "it did not come to the group manager"),
    "another name": (
        Weights.of({"gradient": np.ones(99)}, (TensorSpec("gradient", "float32", (99,)),)),
        "is not one float32 vector named update",
    ),
    "too long": (one_vector(np.ones(1 << 16)), "it did not come to the group manager"),
}


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[] if what == "too long" else [pytest.mark.slow]) for what in BAD]
)
async def test_a_client_whose_update_is_unusable_is_reported_and_is_alone_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Client 2, which would be with 3 and 4, is the first to show something: the others' are right all the same."""
    shown, reason = BAD[what]

    async def spoiled(self: Trainer, order: Order, work: Train, *arguments: Any) -> Trained:
        report, update_id = await TRAIN(self, order, work, *arguments), f"{work.produces}.update"
        if not work.produces.endswith("/1/6/alone/2.0"):
            return report
        self._store.release([update_id])
        if shown is None:
            return dataclasses.replace(report, update=None)
        self._store.put(update_id, shown)
        return dataclasses.replace(report, update=shown.ref(update_id))

    monkeypatch.setattr(Trainer, "carry_out", spoiled)
    config = gated_settings(tmp_path, scheme="hcct", grouping_option=ALPHA, rounds=3, evaluate_every=3)
    run = await play(config, [host("n0", *range(6))])
    (missing,) = run.of_kind("update_missing")
    assert missing["client"] == 2
    assert reason in missing["reason"]
    assert [2, 3, 4] in oracle().play_hcct()[1].partition
    assert [row["partition"] for row in run.rows][1] == [[0, 5], [1], [2], [3, 4]]
    assert [row["clients_trained"] for row in run.rows] == [6, 6, 6]


async def test_a_client_that_could_not_train_is_alone_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it showed two rounds ago is out of date, though it is like what everybody shows."""
    together = {"alpha": "9"}
    assert [len(played.partition) for played in oracle(options=together).play_hcct()[1:3]] == [1, 1]

    async def fails_once(self: Trainer, order: Order, work: Train, *arguments: Any) -> Trained:
        if order.key is not None and (order.key.round, order.client) == (2, 2):
            raise OrderError(Failure(FailureCode.TASK_RAISED, "the camera broke"))
        return await TRAIN(self, order, work, *arguments)

    monkeypatch.setattr(Trainer, "carry_out", fails_once)
    config = gated_settings(tmp_path, scheme="hcct", grouping_option=together, rounds=4, evaluate_every=4)
    run = await play(config, [host("n0", *range(6))])
    assert [row["partition"] for row in run.rows][1:3] == [[[0, 1, 2, 3, 4, 5]], [[0, 1, 3, 4, 5], [2]]]
    assert [row["clients_trained"] for row in run.rows] == [6, 5, 6, 6]
    assert not run.of_kind("model_lost")


async def test_what_was_shown_in_a_try_that_failed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All train in round 2, and the results are lost. When the round is tried again, client 2 cannot train."""
    merge, failed = rounds.merge, asyncio.Event()

    async def losing(context: Any, progress: Any, merging: Any, number: int, training: Any, *more: Any) -> Any:
        if number == 2 and not failed.is_set():
            for outcome in await asyncio.gather(*training):
                await take(context, outcome)  # its manager lets go of it, and nobody takes it in
            failed.set()
            raise AllLostError("the results are lost", "wait")
        return await merge(context, progress, merging, number, training, *more)

    async def fails_again(self: Trainer, order: Order, work: Train, *arguments: Any) -> Trained:
        if failed.is_set() and order.key is not None and (order.key.round, order.client) == (2, 2):
            raise OrderError(Failure(FailureCode.TASK_RAISED, "the camera broke"))
        return await TRAIN(self, order, work, *arguments)

    monkeypatch.setattr(rounds, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(rounds, "merge", losing)
    monkeypatch.setattr(Trainer, "carry_out", fails_again)
    config = gated_settings(tmp_path, scheme="hcct", grouping_option={"alpha": "9"}, rounds=3, evaluate_every=3)
    run = await play(config, [host("n0", *range(6))])
    assert [event["round"] for event in run.of_kind("round_failed")] == [2]
    assert [row["partition"] for row in run.rows][1:] == [[[0, 1, 2, 3, 4, 5]], [[0, 1, 3, 4, 5], [2]]]
    assert [row["clients_trained"] for row in run.rows] == [6, 5, 6]
