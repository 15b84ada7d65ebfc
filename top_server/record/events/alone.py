"""Events of the run in which every client trains alone."""

from collections.abc import Sequence

from top_server.record.events.base import ABSENT, Event, RoundEvent, told


class LocalRunStarted(Event):
    """`--local-run` found no run in its directory, and plays that run first."""

    directory: str
    rounds: int


class LocalRoundFinished(RoundEvent):
    """A round of the local run is finished."""

    rounds: int
    accuracy: float | None
    scored_by: str = told("the `score` of the task, unless it is accuracy", default=ABSENT)
    score: float | None = told("its value; larger is better", default=ABSENT)
    seconds: float


class GainsNotTold(Event):
    """Only one of the two runs has a score of these clients, so their gain over training alone is unknown."""

    clients: Sequence[int]
    reason: str
