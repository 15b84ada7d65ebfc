"""The settings of a node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fedgsp.errors import ConfigError
from fedgsp.messages import MOST_CLIENTS_OF_NODE
from fedgsp.settings.fields import setting
from fedgsp.settings.peers import CONNECTIONS, PeerSettings

WORK = "Work"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(PeerSettings):
    """Every setting of a node."""

    top_server: str = setting(
        "",
        "the top server to join",
        metavar="HOST:PORT",
        address=True,
        required="give --top-server HOST:PORT",
        panel=CONNECTIONS,
    )
    peer_listen: str | None = setting(
        None,
        "where other nodes fetch weights from this node; without it, weights pass through the group managers",
        metavar="HOST:PORT",
        address=True,
        panel=CONNECTIONS,
    )
    advertise: str | None = setting(
        None,
        "the address that other nodes dial to reach this node, if it differs from --peer-listen",
        metavar="HOST:PORT",
        address=True,
        panel=CONNECTIONS,
    )
    connect_timeout: float = setting(
        120.0, "exit after this long without a top server", above=0, metavar="SECONDS", panel=CONNECTIONS
    )
    task: str = setting("digits", "a task by name, or your own task as module:factory", other_names=True, panel=WORK)
    task_option: dict[str, str] = setting({}, "an option of the task; repeatable", options_of="task", panel=WORK)
    clients: str | None = setting(
        None, "clients to host, such as 0-3,7; all clients of the task by default", metavar="IDS", panel=WORK
    )
    threads: int = setting(
        1,
        "threads for training; another number may change the last bits of the models",
        least=1,
        most=1024,
        panel=WORK,
    )
    state_dir: Path | None = setting(
        None,
        "where the heads and models that stay with the clients are kept, so that they survive a restart of the node; "
        "in memory only by default",
        metavar="DIRECTORY",
        panel=WORK,
    )
    name: str | None = setting(None, "name of this node in the run's records; HOST-PID by default", panel=WORK)

    @property
    def client_ids(self) -> tuple[int, ...] | None:
        """The clients to host, ascending; None for all clients of the task. Raises ConfigError."""
        return None if self.clients is None else parse_clients(self.clients)

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        PeerSettings.check_together(self)
        _ = self.client_ids
        if self.advertise and not self.peer_listen:
            raise ConfigError("--advertise names an address, but this node does not listen", "give --peer-listen too")


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
