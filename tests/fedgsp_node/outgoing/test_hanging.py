"""A step that hangs: its order can be called off, the log shows where it is, and the node goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import OutgoingStep, Start, Train
from fedgsp_node.training.control import Control
from tests.support.outgoing_steps import HANGS, MAY_GO_ON
from tests.support.working import HERE, ROUND, SETTINGS, node

HANGING = (OutgoingStep("hanging"),)
#: With a step that is not repeatable, the result is kept.
KEPT = (*HANGING, OutgoingStep("noise", {"scale": "0.5"}))


@pytest.fixture(autouse=True)
def _gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("fedgsp_node.slot.STOP_TIMEOUT_S", 0.01)
    HANGS.clear()
    MAY_GO_ON.clear()
    yield
    MAY_GO_ON.set()


def training(produces: str, *outgoing: OutgoingStep) -> Train:
    return Train(Start("start", HERE), produces, SETTINGS, outgoing=outgoing)


@pytest.mark.parametrize("steps", [HANGING, KEPT])
async def test_an_order_whose_step_hangs_can_be_called_off(
    steps: tuple[OutgoingStep, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        running = asyncio.create_task(n.do(training("a", *steps)))
        assert await asyncio.to_thread(HANGS.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "an outgoing step was cancelled" in caplog.text
        assert "assert MAY_GO_ON.wait(60)" in caplog.text  # the line where it hangs
        behind = asyncio.create_task(n.do(training("b", *steps), round_number=ROUND + 1))
        assert await n.slot.run(lambda _: "trains") == "trains"
        assert "b" not in n.store
        MAY_GO_ON.set()
        await behind
        assert "a" not in n.store
        assert "b" in n.store


async def test_steps_that_hang_take_no_shared_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read and written in these threads, and there are few of them."""
    busy, to_thread = list[Any](), asyncio.to_thread

    async def noted(call: Any, *given: Any) -> Any:
        busy.append(call)
        try:
            return await to_thread(call, *given)
        finally:
            busy.remove(call)

    async with node() as n:
        monkeypatch.setattr(asyncio, "to_thread", noted)
        running = asyncio.create_task(n.do(training("a", *HANGING)))
        assert await to_thread(HANGS.wait, 10)
        hanging_in = list(busy)
        MAY_GO_ON.set()
        await running
        assert not hanging_in


async def test_a_step_that_computes_shows_that_its_node_does_not_hang() -> None:
    """A manager gives an order more time while the processor time of its node grows."""

    def compute(_: Control) -> None:
        begin = time.thread_time()
        while time.thread_time() < begin + 0.05:
            pass

    async with node() as n:
        await n.slot.outgoing.run(compute)
        assert n.worker.computed_s > 0.01
