"""Runs many nodes in one process, some of which leave and return. `churn` starts several such processes.

The process reads orders from standard input: "churn" begins the churn, "calm" ends it. It ends when all nodes have
ended, and prints their results as one line of JSON. The exit code is 0 if all nodes ended with the run.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import sys

from fedgsp.errors import UserError
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import NodeSettings
from fedgsp_node.server import run

#: Seconds from a node's drop to its return.
AWAY_S = 1.0
TICK_S = 0.1


class Host:
    """The nodes of this process. Every node has an asyncio task, except for AWAY_S seconds after it was dropped."""

    def __init__(self, nodes: list[NodeSettings], share: float) -> None:
        self._nodes = {settings.name: settings for settings in nodes}
        self._share = share
        self._tasks: dict[str | None, asyncio.Task[None]] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self.counts: collections.Counter[str] = collections.Counter()
        self.churning = False

    async def live(self) -> None:
        """Waits until all nodes have ended by themselves."""
        for name in self._nodes:
            self._start(name)
        churn = asyncio.create_task(self._churn())
        while alive := [*self._tasks.values(), *self._returning]:
            await asyncio.wait(alive, return_when=asyncio.FIRST_COMPLETED)
        churn.cancel()

    def _start(self, name: str | None) -> None:
        task = asyncio.create_task(self._stay(name), name=f"node {name}")
        self._tasks[name] = task

    async def _stay(self, name: str | None) -> None:
        try:
            await run(self._nodes[name])
            self.counts["finished"] += 1
        except UserError as error:
            self.counts["failed"] += 1
            sys.stderr.write(f"{name}: {error}\n")
        finally:
            self._tasks.pop(name, None)

    async def _churn(self) -> None:
        """Drops a share of the nodes every second, at equal intervals."""
        rng, owed = random.Random(os.getpid()), 0.0
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            owed = owed + self._share * len(self._nodes) * (now - last) if self.churning else 0.0
            last = now
            while owed >= 1 and self._tasks:
                owed -= 1
                self._drop(rng.choice(sorted(self._tasks, key=str)))

    def _drop(self, name: str | None) -> None:
        """Drops a node as if its process were killed: its connections end without a message."""
        returning = asyncio.create_task(self._return(name, self._tasks.pop(name)), name=f"return of node {name}")
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def _return(self, name: str | None, task: asyncio.Task[None]) -> None:
        self.counts["dropped"] += 1
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(AWAY_S)
        self._start(name)


async def obey(host: Host) -> None:
    """Reads orders until the input ends, then cancels all nodes."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        host.churning = line.strip() == b"churn"
    os._exit(1)


async def host(flags: argparse.Namespace) -> int:
    options = dict(option.split("=") for option in flags.task_option)
    nodes = [
        NodeSettings(
            top_server=flags.top_server,
            task=flags.task,
            task_option=options,
            clients=f"{number * flags.clients}-{(number + 1) * flags.clients - 1}",
            name=f"n{number}",
            policy=NO_POLICY,
        )
        for number in range(flags.first, flags.first + flags.nodes)
    ]
    living = Host(nodes, flags.share)
    orders = asyncio.create_task(obey(living))
    await living.live()
    orders.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await orders
    sys.stdout.write(json.dumps(living.counts) + "\n")
    return 0 if living.counts["finished"] == len(nodes) and not living.counts["failed"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--task", required=True)
    parser.add_argument("--task-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--first", type=int, required=True, help="number of the first node in this process")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True, help="number of clients per node")
    parser.add_argument(
        "--share", type=float, required=True, help="share of the nodes to drop in each second of churn"
    )
    return asyncio.run(host(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
