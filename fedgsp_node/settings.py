"""The settings of a node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedgsp.errors import ConfigError
from fedgsp.liveness import LOST_AFTER_S
from fedgsp.messages import MOST_CLIENTS_OF_NODE
from fedgsp.windows import HAND_OVERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fedgsp.tls import Tls


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is told when it starts."""

    top_server: str
    task: str = "digits"
    task_options: Mapping[str, str] = field(default_factory=dict)
    #: Ids of the clients it hosts, ascending; None for all that the task has.
    clients: tuple[int, ...] | None = None
    #: Where it serves its models to other nodes; None where no other node can reach it.
    peer_listen: str | None = None
    #: The address that peers are told; None for the one that was bound.
    advertise: str | None = None
    #: Where its clients keep what never leaves it, for a restart; None: in memory only.
    state_dir: Path | None = None
    #: torch's threads for one training step.
    threads: int = 1
    name: str | None = None
    #: Seconds without a top server after which it gives up.
    connect_timeout: float = 120.0
    #: Seconds without a word after which a peer is gone.
    lost_after: float = LOST_AFTER_S
    #: How models go to and from other processes of this machine: see `windows`.
    hand_over: str = HAND_OVERS[0]
    #: What it proves itself by, and knows all peers by; None for plain connections.
    tls: Tls | None = None


def parse_clients(text: str) -> tuple[int, ...]:
    """Client ids from "3", "0-45" or "0-3,7,9-12", ascending; raises ConfigError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part, re.ASCII)
        if not match:
            raise ConfigError(
                f"--clients {text!r} has {part.strip()!r}", "write ids and ranges, for example 0-3,7,9-12"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ConfigError(f"--clients has the reversed range {part.strip()}", f"write {last}-{first}")
        if last - first >= MOST_CLIENTS_OF_NODE:
            raise ConfigError(
                f"--clients has the range {part.strip()}", f"a node hosts at most {MOST_CLIENTS_OF_NODE:,} clients"
            )
        ids = range(first, last + 1)
        if twice := found.intersection(ids):
            raise ConfigError(f"--clients names client {min(twice)} twice", "name each client once")
        found.update(ids)
    return tuple(sorted(found))
