"""Parallel, members that bring their small models: who is told to, and what is held against the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from fedgsp.messages import FailureCode, GroupResult, Release, SendUp, Train
from fedgsp.transfers import pipes
from group_manager.programs import window
from group_manager.programs.window import AHEAD_PER_NODE
from tests.support.faults import Faults
from tests.support.scene import START, Scene, hosted, scene, step

TWO_NODES = hosted(n1=[0, 2, 4], n2=[1, 3, 5])
SAMPLES = {0: 7, 1: 13, 2: 3, 3: 29, 4: 1, 5: 11}


def mean(clients: Sequence[int]) -> Any:
    """Weighted by samples, to rounding: the order of the fold is another file's claim."""
    exact = sum(SAMPLES[c] * step(c, START) for c in clients) / sum(SAMPLES[c] for c in clients)
    return pytest.approx(exact, rel=1e-12)


def brings(play: Scene) -> dict[int, bool]:
    """Whether each client was to bring its model."""
    orders = [order for node in play.nodes.values() for order in node.orders]
    return {order.client: order.work.bring for order in orders if isinstance(order.work, Train)}


async def test_what_is_brought_is_neither_asked_for_nor_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BROUGHT_BYTES", 8 * 2 * AHEAD_PER_NODE)
    async with scene(samples=SAMPLES) as play:
        await play.attach(TWO_NODES)
        request = play.request(TWO_NODES, "parallel")
        members = tuple(dataclasses.replace(m, weight=m.weight * (m.client != 2)) for m in request.members)
        outcome = await play.run_request(dataclasses.replace(request, members=members))
        assert brings(play) == {client: client != 2 for client in range(6)}  # 2 is not weighed
        works = [order.work for node in play.nodes.values() for order in node.orders]
        assert not [work for work in works if isinstance(work, SendUp)]
        released = {model_id for work in works if isinstance(work, Release) for model_id in work.model_ids}
        assert released == {"run/1/0/parallel/2.0", "start"}
        assert isinstance(outcome, GroupResult)
        assert outcome.bytes_relayed == 8 * 6 + 8 * 5  # a start for each, as scripted nodes tell it, and five models


@pytest.mark.parametrize(
    ("what", "code"), [("nothing", FailureCode.BAD_STREAM), ("another", FailureCode.WRONG_DIGEST)]
)
async def test_who_does_not_bring_what_it_reports_is_skipped(
    what: str, code: FailureCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MOST_BROUGHT_BYTES", 8 * 2 * AHEAD_PER_NODE)
    async with scene(Faults().bring(1, what), samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel")
        failure = play.skipped[1]
        assert failure is not None
        assert failure.code is code
        assert await play.result(outcome) == mean([0, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("bytes_of_one", "most"), [(8, 8 * 2 * AHEAD_PER_NODE - 1), (pipes.LEAST_BYTES, 1 << 40)], ids=["many", "large"]
)
async def test_what_is_much_is_asked_for(bytes_of_one: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BROUGHT_BYTES", most)
    async with scene(samples=SAMPLES) as play:
        outcome = await play.run(TWO_NODES, "parallel", max_model_bytes=bytes_of_one)
        assert not any(brings(play).values())
        assert await play.result(outcome) == mean(range(6))
