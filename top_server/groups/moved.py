"""How many bytes of weights a group moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedgsp.messages import GroupResult, Result, SourceKind, Trained


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that moved directly between nodes, and bytes that moved through the group's manager."""

    direct: int = 0
    relayed: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.direct + other.direct, self.relayed + other.relayed)

    @staticmethod
    def as_told(result: GroupResult) -> Moved:
        """The bytes that a manager counted and reported."""
        return Moved(result.bytes_direct, result.bytes_relayed)

    @staticmethod
    def by(results: Iterable[Result]) -> Moved:
        """The bytes that members fetched for training, by their reports: all that is known if the manager is lost."""
        fetched = [(one.source.kind, one.bytes) for one in results if isinstance(one, Trained) and one.source]
        direct = sum(size for kind, size in fetched if kind is SourceKind.NODE)
        return Moved(direct, sum(size for _, size in fetched) - direct)
