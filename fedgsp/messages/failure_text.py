"""How a failure reads, and how long its detail may be."""

from __future__ import annotations

from enum import IntEnum

from fedgsp.visible import visible

#: Most characters of a failure's detail. It may quote another process, and has to fit into a message and a log.
MAX_DETAIL = 2000


class FailureText:
    """Base of `Failure`: cuts a long detail, makes it visible in one line, and reads as "code: detail"."""

    __slots__ = ()
    code: IntEnum
    detail: str

    def __post_init__(self) -> None:
        detail = visible(self.detail[: MAX_DETAIL + 1])
        if len(detail) > MAX_DETAIL:
            detail = f"{detail[:MAX_DETAIL]}..."
        object.__setattr__(self, "detail", detail)

    def __str__(self) -> str:
        return f"{self.code.name.lower().replace('_', ' ')}: {self.detail}"
