"""Events of the run in which every client trains alone."""

from collections.abc import Sequence

from top_server.record.events.base import Event, RoundEvent


class LocalRunStarted(Event):
    """`--local-run` found no run in its directory, and plays that run first."""

    directory: str
    rounds: int


class LocalRoundFinished(RoundEvent):
    """A round of the local run is finished."""

    rounds: int
    accuracy: float | None
    seconds: float


class GainsNotTold(Event):
    """Only one of the two runs has an accuracy of these clients."""

    clients: Sequence[int]
    reason: str
