"""A round in which all nodes are lost although none of them has left: it is tried again, less and less often."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fedgsp.errors import RunError
from tests.support.hellos import membership
from top_server import rounds
from top_server.groups.lost import AllLostError
from top_server.groups.moved import Moved
from top_server.groups.run import MOST_TRIES
from top_server.in_vain import Tries


async def nothing(*_: Any) -> None:
    pass


async def test_what_was_moved_in_tries_that_failed_counts_in_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    members, recorder = membership()
    context: Any = SimpleNamespace(membership=members, journal=recorder, config=SimpleNamespace(join_timeout=60.0))
    before: list[Moved] = []

    async def tried(*arguments: Any) -> dict[str, Any]:
        (tries,) = (one for one in arguments if isinstance(one, Tries))
        before.append(tries.moved)
        if len(before) == 3:
            return {"round": 3}
        error = AllLostError("no node attached", "open the ports")
        error.moved = Moved(10, 2, 1)
        raise error

    monkeypatch.setattr(rounds, "_try", tried)
    monkeypatch.setattr(rounds, "_wait_for_clients", nothing)
    monkeypatch.setattr(rounds, "gather", nothing)
    monkeypatch.setattr(rounds, "AGAIN_AFTER_S", 0.0)
    nobody: Any = None
    assert await rounds.play(context, nobody, nobody, nobody, 3) == {"round": 3}
    assert before == [Moved(), Moved(10, 2, 1), Moved(20, 4, 2)]


async def test_a_round_whose_managers_nobody_reaches_is_tried_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members, recorder = membership()
    context: Any = SimpleNamespace(membership=members, journal=recorder, config=SimpleNamespace(join_timeout=60.0))
    happened: list[float | str] = []

    async def lost(*_: Any) -> dict[str, Any]:
        happened.append("try")
        raise AllLostError("no node attached", "open the ports")

    async def noted(seconds: float) -> None:
        happened.append(seconds)

    monkeypatch.setattr(rounds, "_try", lost)
    monkeypatch.setattr(rounds, "_wait_for_clients", nothing)
    monkeypatch.setattr(rounds, "gather", nothing)
    monkeypatch.setattr(asyncio, "sleep", noted)
    nobody: Any = None
    with pytest.raises(RunError, match="no node attached; open the ports"):
        await rounds.play(context, nobody, nobody, nobody, 3)
    pauses = [pause for number in range(MOST_TRIES - 1) for pause in (rounds.AGAIN_AFTER_S * 2**number, "try")]
    assert happened == ["try", *pauses]
    assert [event["round"] for event in recorder.of_kind("round_failed")] == [3] * MOST_TRIES
