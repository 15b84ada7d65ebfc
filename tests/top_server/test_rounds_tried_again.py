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
from top_server.groups.run import MOST_TRIES


async def test_a_round_whose_managers_nobody_reaches_is_tried_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members, recorder = membership()
    context: Any = SimpleNamespace(membership=members, journal=recorder, config=SimpleNamespace(join_timeout=60.0))
    happened: list[float | str] = []

    async def lost(*_: Any) -> dict[str, Any]:
        happened.append("try")
        raise AllLostError("no node attached", "open the ports")

    async def nothing(*_: Any) -> None:
        pass

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
