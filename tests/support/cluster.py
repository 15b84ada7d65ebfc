"""A whole system in the test's own event loop: real servers, streams and manager processes; nodes share it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgsp.errors import UserError
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node import server as node_server
from top_server import audit, server
from top_server.record.directory import RunDirectory, prepare
from top_server.record.journal import Journal, Line
from top_server.record.model_files import load
from top_server.schemes import SCHEMES

logger = logging.getLogger(__name__)


@dataclass
class Finished:
    """What a run left behind."""

    directory: RunDirectory
    rows: list[dict[str, Any]]
    events: list[Line] = field(default_factory=list)

    def model(self, number: int) -> dict[str, np.ndarray]:
        return load(self.directory.models / f"round-{number:04d}.safetensors")[0]

    def of_kind(self, kind: str) -> list[Line]:
        return [event for event in self.events if event["event"] == kind]


Host = Callable[[NodeSettings], Awaitable[None]]


async def play(
    config: RunConfig,
    nodes: Sequence[NodeSettings],
    others: Sequence[tuple[NodeSettings, Host]] = (),
    on_event: Callable[[Line], None] = lambda _: None,
) -> Finished:
    """Plays a run with these nodes, which dial the address that the top server bound; `others` live as they like.

    The first round waits for all of these nodes, however slowly one of them starts.
    """
    config = dataclasses.replace(config, min_nodes=max(config.min_nodes, len(nodes)))
    directory = prepare(config)
    events: list[Line] = []
    rows: list[dict[str, Any]] = []
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def watch(event: Line) -> None:
        events.append(event)
        on_event(event)
        if event["event"] == "node_refused":  # its own error is lost if the run ends without it
            logger.warning("node=%s was refused: %s", event["node"], event["reason"])
        if event["event"] == "listening":
            listening.set_result(event["address"])
        if event["event"] == "round_finished":
            rows.append(event)

    async def host(settings: NodeSettings, live: Host) -> None:
        try:
            await live(dataclasses.replace(settings, top_server=await listening))
        except UserError:  # the run has ended: the top server knows why, and must not be cancelled while it closes
            await asyncio.wait([leading])
            raise

    with Journal(directory) as journal:
        journal.subscribe(watch)
        async with asyncio.TaskGroup() as group:
            leading = group.create_task(server.run(config, journal, server.credentials(config)))
            for settings, live in [*((settings, node_server.run) for settings in nodes), *others]:
                group.create_task(host(settings, live))
    audit.verify(directory)
    return Finished(directory, rows, events)


def settings(run_dir: Path, **changes: Any) -> RunConfig:
    """A small run on the digits."""
    grows = SCHEMES[changes.get("scheme", "fedgsp")].sampling != "none"
    quick: dict[str, Any] = {
        "rounds": 2,
        **({"beta": 2, "sampling_rate": 1.0} if grows else {}),
        "listen": "127.0.0.1:0",
        "run_dir": run_dir,
        "keep_models": "all",
        "join_timeout": 30.0,
        "task_option": {"clients": "8"},
    }
    return RunConfig(**{**quick, **changes})


def nodes(*clients: Sequence[int], peers: bool = True, **options: str) -> list[NodeSettings]:
    """One node per sequence of clients, with the digits."""
    return [
        NodeSettings(
            top_server="",
            task_option={"clients": "8", **options},
            clients=",".join(map(str, ids)),
            peer_listen="127.0.0.1:0" if peers else None,
            name=f"n{number}",
            policy=NO_POLICY,
        )
        for number, ids in enumerate(clients)
    ]
