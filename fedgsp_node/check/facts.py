"""What is found out about a node and its top server. A fact is a value, or the error that came in place of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fedgsp.errors import UserError
from fedgsp.messages import About, Failure, HostedClient, WouldTake

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A fact that was not looked for."""

    because: str


#: A value; the error that came in its place; why it was not looked for; or None if there is no such thing here.
Fact: TypeAlias = T | UserError | Unchecked | None

NOT_REACHED = Unchecked("the top server was not reached")
NOT_ANSWERED = Unchecked("the top server does not answer this node")
NO_TASK = Unchecked("the task cannot be used")


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says of itself."""

    #: Host names and IP addresses in its subjectAltName.
    names: tuple[str, ...]
    begins: dt.datetime
    ends: dt.datetime
    #: The process that it names; empty if it names none.
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificate of the top server, and why this node refuses it; None if it does not."""

    certificate: Certificate
    refused: UserError | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """A TCP connection: IP address and port at the other end, and how long it took, in seconds."""

    address: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What the top server said, with the clock of this machine when it was asked and when the answer came."""

    about: About
    asked: float
    heard: float

    @property
    def ahead_s(self) -> float:
        """By how much the clock of the top server is ahead, in seconds."""
        return self.about.clock - (self.asked + self.heard) / 2

    @property
    def uncertain_s(self) -> float:
        """By how much `ahead_s` may be wrong, in seconds."""
        return abs(self.heard - self.asked) / 2


@dataclass(frozen=True, slots=True)
class Pace:
    """Round trip in seconds; bytes per second, up and down together, of the full messages that were sent."""

    round_trip_s: float
    bytes_per_s: float
    #: Whether the rate is only an upper bound: no full message came back in time.
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes of the file system of a folder, and what `purpose` needs there."""

    folder: Path
    purpose: str
    free: int
    needed: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that this process may still take, and bytes that training needs."""

    available: int
    needed: int


@dataclass(frozen=True, slots=True)
class Data:
    """The numbers of samples of each client, and the errors of clients whose data cannot be used."""

    wanted: int
    sizes: Mapping[int, HostedClient]
    failed: Mapping[int, UserError]
    seconds: float


@dataclass(frozen=True, slots=True)
class Model:
    """The model of the task: bytes of all tensors that travel, and number of tensors."""

    size: int
    tensors: int
    #: The error of class_counts(); None if the task has class counts, or simply has none.
    class_counts_failed: Failure | None = None


@dataclass(slots=True, kw_only=True)
class Facts:
    """All that was found. `fedgsp_node.check.table` has a line for each field that is a Fact."""

    address: str
    #: The clock of this machine when the check began, seconds since 1970.
    now: float
    protocol: int
    own_versions: Mapping[str, str]
    insecure: bool = False
    #: For how many seconds the data may be read (--data-timeout); 0 for no limit.
    data_timeout: float = 0.0

    own: Fact[Certificate] = None
    proxy: Fact[Reached] = None
    reached: Fact[Reached] = NOT_REACHED
    shown: Fact[Shown] = None
    answered: Fact[Answered] = NOT_REACHED
    manager: Fact[Reached] = NOT_ANSWERED
    pace: Fact[Pace] = NOT_ANSWERED
    policy: Fact[str] = NO_TASK
    device: Fact[str] = NO_TASK
    task: Fact[str] = NO_TASK
    data: Fact[Data] = NO_TASK
    model: Fact[Model] = NO_TASK
    disk: Fact[tuple[Room, ...]] = NO_TASK
    memory: Fact[Memory] = None
    peer: Fact[str] = None
    admission: Fact[WouldTake] = NOT_ANSWERED
    #: Why the policy would refuse what the run orders.
    orders: Fact[tuple[str, ...]] = NOT_ANSWERED
    #: Whether the task is a module of the user (`--task MODULE:NAME`), and no task of a package.
    own_task: bool = False
    #: The name of the node, for words.
    name: str = field(default="")

    def of(self, name: str) -> Fact[Any]:
        """The fact of this name."""
        return getattr(self, name)
