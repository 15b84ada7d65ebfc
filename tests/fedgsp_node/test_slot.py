"""The training slot: one call at a time, and nobody leaves while a call of theirs runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from fedgsp.tensors import memory
from fedgsp_node.slot import Slot
from fedgsp_node.training.control import Control, StoppedError
from tests.support.scripted import let_others_run


@dataclass
class Batches:
    """A call that ticks until it is told to end, or to stop."""

    started: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    #: Once told to stop, it waits for this before it does.
    may_leave: threading.Event = field(default_factory=threading.Event)

    def __call__(self, control: Control) -> str:
        self.started.set()
        try:
            while not self.end.wait(0.001):
                control.tick()
            return "done"
        finally:
            self.may_leave.wait(10)
            self.left.set()

    async def running(self) -> None:
        assert await asyncio.to_thread(self.started.wait, 10)


@pytest.fixture
def slot() -> Iterator[Slot]:
    slot = Slot()
    with contextlib.closing(slot):
        yield slot


def quick(value: str) -> Callable[[Control], str]:
    return lambda _: value


async def test_a_calls_result_and_exception_reach_the_caller(slot: Slot) -> None:
    assert await slot.run(quick("here")) == "here"

    def fail(_: Control) -> None:
        raise KeyError("there")

    with pytest.raises(KeyError):
        await slot.run(fail)
    assert await slot.run(quick("again")) == "again"


async def test_calls_run_one_at_a_time_in_one_thread_in_the_order_they_came(slot: Slot) -> None:
    first, log = Batches(), []
    first.may_leave.set()

    def note(number: int) -> Callable[[Control], None]:
        return lambda _: log.append((number, threading.current_thread().name))

    running = asyncio.create_task(slot.run(first))
    await first.running()
    others = [asyncio.create_task(slot.run(note(number))) for number in range(3)]
    await let_others_run()
    assert log == []
    first.end.set()
    await asyncio.gather(running, *others)
    assert [number for number, _ in log] == [0, 1, 2]
    assert len({thread for _, thread in log} | {threading.current_thread().name}) == 2


async def test_a_cancelled_call_is_stopped_and_waited_for(slot: Slot) -> None:
    batches = Batches()
    running = asyncio.create_task(slot.run(batches))
    await batches.running()
    running.cancel()
    await let_others_run()
    assert not running.done()
    batches.may_leave.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert batches.left.is_set()


async def test_a_call_cancelled_twice_is_waited_for_all_the_same(slot: Slot) -> None:
    batches = Batches()
    running = asyncio.create_task(slot.run(batches))
    await batches.running()
    for _ in range(3):
        running.cancel()
        await let_others_run()
    assert not running.done()
    waiting = asyncio.create_task(slot.run(lambda _: batches.left.is_set()))
    await let_others_run()
    assert not waiting.done()
    batches.may_leave.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await waiting is True


async def test_a_call_that_does_not_stop_is_shown_in_the_log_and_nothing_is_queued_behind_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slot: Slot
) -> None:
    monkeypatch.setattr("fedgsp_node.slot.STOP_TIMEOUT_S", 0.01)
    batches, log = Batches(), []
    running = asyncio.create_task(slot.run(batches))
    await batches.running()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "still runs" in caplog.text
    assert "self.may_leave.wait(10)" in caplog.text  # the line where it hangs
    called_off = asyncio.create_task(slot.run(lambda _: log.append("called off")))
    behind = asyncio.create_task(slot.run(quick("behind")))
    await let_others_run()
    assert slot._thread._work_queue.empty()
    called_off.cancel()
    await let_others_run()
    assert called_off.cancelled()
    assert not behind.done()
    batches.may_leave.set()
    assert await behind == "behind"
    assert log == []


async def test_a_caller_that_is_cancelled_while_it_waits_never_runs(slot: Slot) -> None:
    first, log = Batches(), []
    first.may_leave.set()
    running = asyncio.create_task(slot.run(first))
    await first.running()
    waiting = asyncio.create_task(slot.run(lambda _: log.append("ran")))
    behind = asyncio.create_task(slot.run(quick("behind")))
    await let_others_run()
    waiting.cancel()
    first.end.set()
    assert await behind == "behind"
    assert await running == "done"
    assert waiting.cancelled()
    assert log == []


async def test_the_mark_grows_with_every_batch_and_never_falls(slot: Slot) -> None:
    def tick(times: int) -> Callable[[Control], None]:
        def call(control: Control) -> None:
            for _ in range(times):
                control.tick()

        return call

    assert slot.mark == 0
    await slot.run(tick(3))
    assert slot.mark == 3
    await slot.run(tick(2))
    assert slot.mark == 5


async def test_the_mark_counts_while_a_call_runs(slot: Slot) -> None:
    ticked, go_on = threading.Event(), threading.Event()

    def call(control: Control) -> None:
        control.tick()
        ticked.set()
        go_on.wait(10)

    running = asyncio.create_task(slot.run(call))
    assert await asyncio.to_thread(ticked.wait, 10)
    assert slot.mark == 1
    go_on.set()
    await running
    assert slot.mark == 1


async def test_closing_stops_the_call() -> None:
    slot, batches = Slot(), Batches()
    batches.may_leave.set()
    running = asyncio.create_task(slot.run(batches))
    await batches.running()
    slot.close()
    with pytest.raises(StoppedError):
        await running
    assert batches.left.is_set()
    with pytest.raises(RuntimeError):
        await slot.run(quick("too late"))


async def test_memory_is_given_back_once_there_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rested = asyncio.Event()
    monkeypatch.setattr(memory, "at_rest", rested.set)
    monkeypatch.setattr("fedgsp_node.slot.REST_AFTER_S", 0.0)
    one = Slot()
    await one.run(lambda _: None)
    assert not rested.is_set()
    await rested.wait()
    one.close()


async def test_memory_stays_while_there_is_more_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order would have to ask for all of it again."""
    monkeypatch.setattr("fedgsp_node.slot.REST_AFTER_S", 3600.0)
    one = Slot()
    await one.run(lambda _: None)
    first = one._rest
    await one.run(lambda _: None)
    assert first is not None
    assert first.cancelled()
    assert one._rest is not None
    last = one._rest
    one.close()
    assert last.cancelled()


async def test_the_slot_of_outgoing_steps_leaves_the_memory_of_trainings_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end would give back what the training beside it works with."""
    called: list[str] = []
    for name in ("at_work", "at_rest"):
        monkeypatch.setattr(memory, name, lambda name=name: called.append(name))
    monkeypatch.setattr("fedgsp_node.slot.REST_AFTER_S", 0.0)
    one = Slot(trains=False)
    await one.run(lambda _: None)
    await let_others_run()
    one.close()
    assert called == []


async def test_the_processor_time_of_the_thread_is_known_while_it_runs(slot: Slot) -> None:
    assert slot.computed_s == 0
    computing, enough = threading.Event(), threading.Event()

    def compute(_: Control) -> float:
        begin = time.thread_time()
        while (used := time.thread_time()) < begin + 0.05:
            pass
        computing.set()
        enough.wait(10)
        return used

    running = asyncio.create_task(slot.run(compute))
    assert await asyncio.to_thread(computing.wait, 10)
    so_far = slot.computed_s
    enough.set()
    # The clocks of the processors of a virtual machine differ a little.
    assert so_far == pytest.approx(await running, abs=0.01)
    assert slot.computed_s == pytest.approx(so_far, abs=0.01)
