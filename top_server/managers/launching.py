"""The contract of launchers: who starts the processes of group managers, on this machine or on others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

#: Raises PeerError if the process at an address is not the manager that was started.
Greet = Callable[[str], Awaitable[None]]


class Process(Protocol):
    """The process of a manager."""

    @property
    def pid(self) -> int:
        """Its process id, on its machine."""

    @property
    def over(self) -> str:
        """Why it does not run any more, as far as that is known; empty while it runs."""

    async def end(self, grace_s: float) -> None:
        """Ends it, at the latest `grace_s` seconds after it was asked to end."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A manager that runs and was greeted."""

    #: Where nodes and the top server dial it.
    address: str
    process: Process
    #: Where its log is, in words.
    log: str
    #: The node on whose machine it runs; empty for the machine of the top server.
    node: str = ""
    #: Whether nodes get the start of a parallel group from it, because it is closer to them than the top server.
    hands_on: bool = False


class Launcher(Protocol):
    """Starts managers."""

    @property
    def at_once(self) -> int:
        """How many managers may start at the same time."""

    @property
    def enough(self) -> int:
        """How many managers are enough for any number of groups: more would gain nothing."""

    @property
    def most(self) -> int | None:
        """How many managers can run at the same time; None for any number."""

    async def launch(self, name: str, greet: Greet) -> Launched:
        """Starts a manager and greets it; raises UserError, and leaves no process behind then."""
