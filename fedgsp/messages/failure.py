"""Why something did not work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class FailureCode(IntEnum):
    """Why something was refused or did not work; numbers as in `failure.proto`."""

    UNSPECIFIED = 0
    UNREACHABLE = 1
    NODE_LOST = 2
    STALLED = 3
    CANCELLED = 4
    UNKNOWN_CLIENT = 10
    BAD_ORDER = 11
    NO_SUCH_MODEL = 20
    CUT_SHORT = 21
    TOO_LONG = 22
    WRONG_DIGEST = 23
    WRONG_SHAPES = 24
    NOT_FINITE = 25
    BAD_STREAM = 26
    LONG_UPDATE = 27
    TASK_RAISED = 30
    WRONG_PROTOCOL = 40
    WRONG_TASK = 41
    CLIENT_TAKEN = 42
    NAME_TAKEN = 43
    RUN_OVER = 44
    NO_CLIENTS = 45
    CANNOT_BE_DIALLED = 46
    TOO_MANY = 47


#: Characters of a detail, which may quote what a peer said: it has to fit a message, and a log.
MAX_DETAIL = 2000


@dataclass(frozen=True, slots=True)
class Failure:
    """An expected failure: a value, not an exception."""

    code: FailureCode
    detail: str

    def __post_init__(self) -> None:
        if len(self.detail) > MAX_DETAIL:
            object.__setattr__(self, "detail", f"{self.detail[:MAX_DETAIL]}...")

    def __str__(self) -> str:
        return f"{self.code.name.lower().replace('_', ' ')}: {self.detail}"
