"""A node tells other numbers than those it joined with, in a real run: they do not count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Evaluated, Order, Trained
from fedgsp_node.tasks import load_task
from fedgsp_node.worker import Worker
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, assert_same_bits

LIAR = 5


@pytest.fixture(autouse=True)
def _managers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


def lying(monkeypatch: pytest.MonkeyPatch, kind: type, lie: Callable[[Any], Any]) -> None:
    """The client `LIAR` answers orders of a kind with what `lie` makes of its answer."""
    carry_out = Worker.carry_out

    async def changed(self: Worker, order: Order, upload: Any, trained: Callable[[Any], None], *more: Any) -> Any:
        def told(result: Any) -> Any:
            return lie(result) if order.client == LIAR and isinstance(result, kind) else result

        return told(await carry_out(self, order, upload, lambda result: trained(told(result)), *more))

    monkeypatch.setattr(Worker, "carry_out", changed)


async def test_a_client_cannot_count_for_more_samples_than_it_joined_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, Trained, lambda one: dataclasses.replace(one, samples=one.samples * 1000))
    run = await play(settings(tmp_path / "run", scheme="fedavg"), nodes(range(4), range(4, 8)))
    oracle = Reference(
        load_task("digits", {"clients": "8"}),
        range(8),
        rounds=2,
        beta=2,
        sampling_rate=1.0,
        takes_part=lambda _r, _g, client: client != LIAR,
    )
    assert_same_bits(run.model(2), oracle.play_fedavg()[1])
    assert {event["client"] for event in run.of_kind("client_skipped")} == {LIAR}
    assert "training samples, and said" in run.of_kind("client_skipped")[0]["reason"]


async def test_a_client_cannot_choose_the_accuracy_of_a_run_by_its_number_of_test_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, Evaluated, lambda one: dataclasses.replace(one, samples=10**9, correct=10**9))
    run = await play(settings(tmp_path / "run", scheme="fedavg"), nodes(range(4), range(4, 8)))
    assert [row["accuracy"] for row in run.rows] == [None, None]
    assert [row["clients_evaluated"] for row in run.rows] == [7, 7]
    assert "1 of 8 clients gave no answer" in run.of_kind("not_evaluated")[0]["reason"]
