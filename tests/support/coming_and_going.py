"""Small runs with real nodes, of which one is restarted within a round, or joins late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fedgsp.settings.run import NodeSettings
from fedgsp_node import server as node_server
from tests.support.cluster import Finished, play
from tests.support.gated_task import GATES, gated_settings, host
from top_server.record.journal import Line

#: Hosted by the node that is restarted in the middle of round 2, when they have trained; the others wait that long.
RESTARTED = (0, 1, 2)


def gone_at(leave: asyncio.Event) -> Callable[[NodeSettings], Coroutine[Any, Any, None]]:
    """What plays a node that ends when it is to leave."""

    async def goes(settings: NodeSettings) -> None:
        first = asyncio.create_task(node_server.run(settings))
        await leave.wait()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first

    return goes


def away_between(leave: asyncio.Event, back: asyncio.Event) -> Callable[[NodeSettings], Coroutine[Any, Any, None]]:
    """What plays a node that ends when it is to leave, and starts again when it is to be back."""
    goes = gone_at(leave)

    async def goes_and_comes(settings: NodeSettings) -> None:
        await goes(settings)
        await back.wait()
        await node_server.run(settings)

    return goes_and_comes


async def play_with_a_restart(tmp_path: Path, state_dir: Path | None, **changes: Any) -> Finished:
    gate = GATES["restart"]
    gate.set()
    trained, left = asyncio.Event(), asyncio.Event()
    seen: set[int] = set()

    def watch(event: Line) -> None:
        match event:
            case {"event": "round_started", "round": 2}:
                gate.clear()
            case {"event": "hop_finished", "round": 2, "client": client}:
                seen.add(client)
                if seen.issuperset(RESTARTED):
                    trained.set()
            case {"event": "node_left", "node": "restarted"}:
                left.set()
            case {"event": "node_joined", "node": "restarted"} if left.is_set():
                gate.set()

    stays = host("stays", 3, 4, 5, gate="restart")
    back = host("restarted", *RESTARTED, state_dir=state_dir)
    config = gated_settings(tmp_path, min_nodes=2, **changes)
    run = await play(config, [stays], [(back, away_between(trained, left))], watch)
    assert len([event for event in run.of_kind("node_joined") if event["node"] == "restarted"]) == 2
    return run


#: They join while round 2 is being played.
NEW = (4, 5)
JOINS = dict.fromkeys(NEW, 3)


async def play_with_newcomers(tmp_path: Path, **changes: Any) -> Finished:
    gate = GATES["newcomers"]
    gate.set()
    begun = asyncio.Event()

    def watch(event: Line) -> None:
        match event:
            case {"event": "round_started", "round": 2}:
                gate.clear()
                begun.set()
            case {"event": "node_joined", "node": "new"}:
                gate.set()

    async def joins_late(settings: NodeSettings) -> None:
        await begun.wait()
        await node_server.run(settings)

    early = [host("n0", 0, 1), host("n1", 2, 3, gate="newcomers")]
    config = gated_settings(tmp_path, min_nodes=2, **changes)
    return await play(config, early, [(host("new", *NEW), joins_late)], watch)
