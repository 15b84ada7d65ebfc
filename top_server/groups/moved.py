"""How many bytes of weights have moved for training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedgsp.messages import Result, SourceKind, Trained


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of weights that moved between nodes and through managers, and the bytes that travelled for them."""

    direct: int = 0
    relayed: int = 0
    #: Over connections, after coding.
    travelled: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.direct + other.direct, self.relayed + other.relayed, self.travelled + other.travelled)

    @staticmethod
    def by(results: Iterable[Result]) -> Moved:
        """The bytes that members fetched for training, by their reports: all that is known if the manager is lost."""
        fetched = [(one.source.kind, one) for one in results if isinstance(one, Trained) and one.source]
        direct = sum(one.bytes for kind, one in fetched if kind is SourceKind.NODE)
        relayed = sum(one.bytes for _, one in fetched) - direct
        return Moved(direct, relayed, sum(one.source.travelled for _, one in fetched if one.source))


NOTHING = Moved()
