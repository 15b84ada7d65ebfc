"""Nodes that a run starts on its own machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING

from fedgsp import lifecycle
from fedgsp.addresses import resolve
from fedgsp.errors import PeerError, RunError, UserError
from fedgsp.settings.children import arguments_of
from fedgsp.settings.node import NodeSettings
from top_server.record.directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from fedgsp.settings.run import RunConfig
    from top_server.record.journal import Event, Journal

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"

#: A child says by its exit code what kind of mistake it met; the run ends with the same.
_ERRORS: dict[int, type[UserError]] = {kind.exit_code: kind for kind in UserError.__subclasses__()}


def name_of(index: int) -> str:
    """The name of a local node, in the record of the run and of its log."""
    return f"node-{index}"


def blocks(clients: int, nodes: int) -> list[range]:
    """Clients 0 .. clients-1 dealt to nodes as contiguous blocks whose sizes differ by one at most."""
    edges = [index * clients // nodes for index in range(nodes + 1)]
    return [range(first, end) for first, end in itertools.pairwise(edges)]


def commands(config: RunConfig, top_server: str) -> list[list[str]]:
    """The command line of every local node."""
    dealt = blocks(config.clients, config.local_nodes) if config.clients is not None else [None] * config.local_nodes
    found = []
    for index, block in enumerate(dealt):
        name = name_of(index)
        settings = NodeSettings(
            **config.for_children,
            top_server=resolve(top_server, HOST),
            peer_listen=f"{HOST}:0",
            connect_timeout=config.join_timeout,
            task=config.task,
            task_option=config.task_option,
            clients=f"{block[0]}-{block[-1]}" if block else None,
            threads=config.threads,
            # What stays with the clients, so that the run can be resumed.
            state_dir=RunDirectory(config.run_dir).state / name if config.run_dir is not None else None,
            name=name,
        )
        found.append([*lifecycle.python_module("fedgsp_node"), "start", *arguments_of(settings)])
    return found


@contextlib.asynccontextmanager
async def running(
    commands: Sequence[Sequence[str]], logs: Path, journal: Journal
) -> AsyncIterator[Callable[[], None]]:
    """The local nodes of a run, while the body lasts; none is left behind. Their output goes to `logs`/NAME.log.

    A node that ends before it joined is a mistake that others would wait for in vain: the body is cancelled, and the
    kind of UserError that the node ended with is raised. One that ends later is lost like any other node, unless all
    have ended and no others ever joined: nobody would start them again, and RunError is raised. The body calls what it
    is given before it asks nodes to end.
    """
    body = asyncio.current_task()
    assert body is not None
    cancelled_before = body.cancelling()
    joined: set[str] = set()
    gone: set[str] = set()
    early: list[UserError] = []
    over = False

    def notice(event: Event) -> None:
        if event["event"] == "node_joined":
            joined.add(event["node"])

    def end(error: UserError) -> None:
        if not early and not over:
            early.append(error)
            body.cancel()

    def ended(name: str, error: UserError) -> None:
        gone.add(name)
        if name not in joined:
            end(error)
            return
        logger.warning("%s", error)
        if len(gone) == len(commands) and joined <= gone:
            end(RunError(f"no node is left: {error.what}", error.remedy))

    def will_be_over() -> None:
        nonlocal over
        over = True

    unsubscribe = journal.subscribe(notice)
    children: list[asyncio.subprocess.Process] = []
    watchers: list[asyncio.Task[None]] = []
    try:
        for index, command in enumerate(commands):
            name, log = name_of(index), logs / f"{name_of(index)}.log"
            children.append(await lifecycle.spawn(command, log, says_ready=False))
            watchers.append(asyncio.create_task(_watch(children[-1], name, log, ended), name=f"watch {name}"))
        yield will_be_over
    except asyncio.CancelledError:
        # As asyncio.timeout does: turned into the error only if nobody else asked for the end as well.
        if early and body.uncancel() <= cancelled_before:
            raise early[0] from None
        raise
    finally:
        over = True
        unsubscribe()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await asyncio.gather(*(lifecycle.stop(child) for child in children))


async def _watch(
    child: asyncio.subprocess.Process, name: str, log: Path, ended: Callable[[str, UserError], None]
) -> None:
    code = await child.wait()
    if code:
        kind = _ERRORS.get(code, PeerError)
        ended(name, kind(f"local {name} ended with exit code {code}", f"its log, {log}, ends: {lifecycle.tail(log)}"))
