"""The protocol of trackers: what they get of a run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.parts import PartWithNeeds


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a run when a tracker begins to follow it."""

    #: Id of the run; a resumed or extended run keeps it.
    run: str
    #: The directory of the run.
    directory: Path
    #: When the first top server of the run began with rounds.
    began: datetime
    #: Setting -> value, of the settings that say what is trained, and how.
    parameters: Mapping[str, str]
    #: scheme, seed, task, version and, if FedGSP runs from a checkout, commit.
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Points:
    """The figures of one finished round."""

    round: int
    #: When the round was finished.
    time: datetime
    #: Name -> finite value. Figures of the round have the names of history.jsonl; `score`, metrics/NAME and
    #: validation/NAME stand beside them, group/NUMBER/NAME and client/NUMBER/NAME are of one group and one client.
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    #: "finished", "failed", "stopped" or "open": there is no end in the record.
    kind: str = "open"
    time: datetime | None = None
    #: Why it failed, and what to do.
    reason: str = ""


class Tracking(ABC):
    """One tracker at work on one run.

    The top server makes the object, and calls its methods, in a thread of the tracker's own, so that they may take
    long. The constructor gets the options, and should import what takes long to import. `begin` comes once the run
    has begun, then `add` for each finished round in ascending order, and `end` when the top server ends.

    If a method raises an exception, the top server warns, and calls the method again with the same arguments, some
    seconds later: a method that has half succeeded must not leave doubled points behind.
    """

    @abstractmethod
    def begin(self, about: About) -> int:
        """Begins, or continues, the record of a run; returns the last round that the tracker has, 0 for none."""

    @abstractmethod
    def add(self, points: Points) -> None:
        """Takes the figures of a round."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """Takes the end of the run. The run may be resumed or extended later, by another object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker(PartWithNeeds):
    """The declaration of a tracker; its `code` is a subclass of `Tracking`, called with the options.

    `--track NAME=VALUE` sets the option `to`, if the tracker has one. If the tracker has an option `clients` and that
    is false, it gets no figures of single clients.
    """


def thinned(points: Points, options: Any) -> Points:
    """The points without those of single clients, if the options of the tracker say so."""
    if getattr(options, "clients", True):
        return points
    return Points(
        points.round, points.time, {name: one for name, one in points.values.items() if not name.startswith("client/")}
    )


def refuse_password(what: str, url: str) -> None:
    """Raises ConfigError for a URL with a password: it would stand in config.toml and in reports."""
    from urllib.parse import urlsplit

    try:
        secret = urlsplit(url).password
    except ValueError as error:
        raise ConfigError(f"{what} is no URL: {error}", "write scheme://host:port") from None
    if secret is not None:
        raise ConfigError(f"{what} has a password in its URL", "give it by the environment: see docs/trackers.md")
