"""Results that wait at a manager when it is lost are made again, all at the same time."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, GroupResult, MemberSkipped, ModelRef
from tests.support.fuzzing import soon
from top_server import rounds
from top_server.groups.lost import AllLostError
from top_server.groups.run import MOST_MANAGERS
from top_server.groups.task import GroupOutcome, GroupTask, Trace
from top_server.managers.client import BrokenOff

RESULT = GroupResult(ModelRef("m"), 1, 0, 0)
GONE = Failure(FailureCode.UNREACHABLE, "the manager is gone")


class Manager:
    """Somebody that leads groups."""


def outcome(
    number: int, manager: Any, result: GroupResult | Failure = RESULT, program: str = "relay", attempt: int = 0
) -> GroupOutcome:
    task = GroupTask(number, program, (number,))
    return GroupOutcome(task, manager, result, done=(), skipped=(), trace=Trace(attempt))


@pytest.mark.parametrize("there", [False, True])
async def test_what_was_lost_with_a_manager_is_made_again_side_by_side(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    lost, other = Manager(), Manager()
    again: list[int] = []
    both = asyncio.Event()

    async def run_again(_context: Any, _progress: Any, _number: int, before: Any, gone: bool, _reveals: Any) -> Any:
        assert gone is not there
        again.append(before.task.number)
        if len(again) == 2 or there:
            both.set()
        await both.wait()  # hangs if they run one by one
        return outcome(before.task.number, other)

    async def take_in(
        _context: Any, _progress: Any, _merging: Any, _number: int, came: Any
    ) -> Failure | BrokenOff | None:
        if isinstance(came.result, Failure):
            return came.result
        return BrokenOff(GONE, not there) if came.manager is lost and came.task.program == "relay" else None

    async def change(*_: Any) -> None:
        """Nothing to merge."""

    monkeypatch.setattr(rounds, "run_again", run_again)
    monkeypatch.setattr(rounds, "take_in", take_in)
    monkeypatch.setattr(rounds, "change_models", change)
    monkeypatch.setattr(rounds, "_record_ends", lambda *_: None)
    unreached = Failure(FailureCode.UNREACHABLE, "no member trained")
    ended = [
        outcome(0, other),
        outcome(1, lost),
        outcome(2, lost, unreached),
        outcome(3, lost, program="evaluate"),
        outcome(4, other),
        outcome(5, lost, program="alone"),
        outcome(6, lost),
        outcome(7, lost, attempt=MOST_MANAGERS - 1),
    ]

    async def end(one: Any) -> Any:
        return one

    training = [asyncio.create_task(end(one)) for one in ended]
    await asyncio.wait(training)
    progress: Any = SimpleNamespace(in_vain=0)
    merged = await soon(rounds.merge(SimpleNamespace(), progress, SimpleNamespace(), 1, training))  # type: ignore[arg-type]
    assert again == [1, 6]
    assert [one.task.number for one in merged] == [*range(8)]
    assert [one.task.number for one in merged if one.manager is lost] == [2, 3, 5, 7]
    assert merged[7].result == GONE, "it was tried on as many managers as it may be"


@pytest.mark.parametrize("dying", [1, 2, MOST_MANAGERS - 1, MOST_MANAGERS])
async def test_managers_that_die_one_after_another_cost_the_result_only_if_too_many_die(
    monkeypatch: pytest.MonkeyPatch, dying: int
) -> None:
    """Each of the first managers is lost while the result is fetched from it."""
    managers = [Manager() for _ in range(MOST_MANAGERS)]
    ends: list[Failure | None] = []

    async def run_again(_context: Any, _progress: Any, _number: int, before: Any, gone: bool, _reveals: Any) -> Any:
        assert gone
        attempt = before.trace.attempt + 1
        return outcome(before.task.number, managers[attempt], attempt=attempt)

    async def take_in(
        _context: Any, _progress: Any, _merging: Any, _number: int, came: Any
    ) -> Failure | BrokenOff | None:
        return BrokenOff(GONE, True) if came.task.number == 0 and came.manager in managers[:dying] else None

    async def change(*_: Any) -> None:
        """Nothing to merge."""

    monkeypatch.setattr(rounds, "run_again", run_again)
    monkeypatch.setattr(rounds, "take_in", take_in)
    monkeypatch.setattr(rounds, "change_models", change)
    monkeypatch.setattr(rounds, "_record_ends", lambda _context, _number, _outcome, failure: ends.append(failure))

    async def end(one: Any) -> Any:
        return one

    training = [asyncio.create_task(end(outcome(0, managers[0]))), asyncio.create_task(end(outcome(1, Manager())))]
    await asyncio.wait(training)
    progress: Any = SimpleNamespace(in_vain=0)
    first, second = await soon(rounds.merge(SimpleNamespace(), progress, SimpleNamespace(), 1, training))  # type: ignore[arg-type]
    lost = dying == MOST_MANAGERS
    assert first.result == (GONE if lost else RESULT)
    assert first.manager is managers[min(dying, MOST_MANAGERS - 1)]
    assert second.result == RESULT
    assert ends == [GONE if lost else None, None], "the record names the loss of this group, and of no other"


async def test_a_round_whose_clients_all_came_too_late_for_its_plan_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No node is lost, and the next try plans with what is known by then."""
    late = MemberSkipped(0, Failure(FailureCode.UNSPECIFIED, "it had 12 training samples when its group was planned"))
    nobody = Failure(FailureCode.NODE_LOST, "no member trained; the last reason: no member of the group can take part")
    ended = dataclasses.replace(outcome(0, Manager(), nobody), skipped=(late,))

    async def take_in(*_: Any) -> Failure:
        return nobody

    async def end() -> GroupOutcome:
        return ended

    monkeypatch.setattr(rounds, "take_in", take_in)
    monkeypatch.setattr(rounds, "_record_ends", lambda *_: None)
    progress: Any = SimpleNamespace(in_vain=0, afresh=set())
    context: Any = SimpleNamespace(membership=SimpleNamespace(clients=(0,)))
    nothing: Any = SimpleNamespace()
    with pytest.raises(AllLostError, match="round 1 trained nobody"):
        await rounds.merge(context, progress, nothing, 1, [asyncio.create_task(end())])
