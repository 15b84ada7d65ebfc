"""A run is extended or resumed in the test's own event loop, as `cluster.play` plays a new one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from fedgsp.errors import RunError
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node import server as node_server
from tests.support.cluster import Finished
from top_server import server
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.record.journal import Journal, Line
from top_server.resume import find as resuming


async def extended(directory: RunDirectory, rounds: int, hosts: Sequence[NodeSettings]) -> Finished:
    """What `top-server --extend` does, with nodes of this process."""
    found = resuming.find(directory, extends=True)
    config = resuming.settings_of(found, directory)
    resuming.check_settings(found, config)
    return await _continued(directory, found, dataclasses.replace(config, rounds=rounds), hosts)


async def resumed(directory: RunDirectory, hosts: Sequence[NodeSettings]) -> Finished:
    """What `top-server --resume` does, with nodes of this process."""
    found = resuming.find(directory)
    config = resuming.settings_of(found, directory)
    resuming.check_settings(found, config)
    return await _continued(directory, found, config, hosts)


async def _continued(
    directory: RunDirectory, found: resuming.Resumed, config: RunConfig, hosts: Sequence[NodeSettings]
) -> Finished:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    events: list[Line] = []

    def watch(event: Line) -> None:
        events.append(event)
        if event["event"] == "listening":
            listening.set_result(event["address"])

    async def host(node: NodeSettings) -> None:
        with_address = dataclasses.replace(node, top_server=await listening)
        try:
            await node_server.run(with_address)
        except RunError:
            await asyncio.wait([leading])

    with Journal(directory) as journal:
        journal.subscribe(watch)
        async with asyncio.TaskGroup() as group:
            leading = group.create_task(server.run(config, journal, server.credentials(config), found))
            for node in hosts:
                group.create_task(host(node))
    return Finished(directory, read_lines(directory.history), events)
