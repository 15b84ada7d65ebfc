"""What the top server hears of a group while it runs, and the bytes of models that it moved."""

from __future__ import annotations

from collections.abc import Callable

from fedgsp.encoding import wire_bytes
from fedgsp.messages import (
    Discriminated,
    Evaluated,
    Failure,
    GroupEvent,
    Member,
    MemberDone,
    MemberSkipped,
    PairsLeft,
    PartLost,
    Rerouted,
    Result,
    SourceKind,
    Trained,
)
from fedgsp.weights import Weights


class Reports:
    """Events of one group, in the order in which they come."""

    def __init__(self, tell: Callable[[GroupEvent], None]) -> None:
        self._tell = tell
        self.bytes_direct = 0
        self.bytes_relayed = 0

    def done(self, member: Member, position: int, result: Result, update_length: float = 0.0) -> None:
        """A member finished."""
        self.count(result)
        self._tell(GroupEvent(MemberDone(member.client, position, result, update_length)))

    def count(self, result: Result) -> None:
        """Adds the bytes that a member fetched."""
        if isinstance(result, Trained | Evaluated | Discriminated) and result.source is not None:
            if result.source.kind is SourceKind.NODE:
                self.bytes_direct += result.bytes
            else:
                self.bytes_relayed += result.bytes

    def count_relayed(self, weights: Weights) -> None:
        """Adds the bytes of a model that came here."""
        self.bytes_relayed += wire_bytes(weights.tensors, weights.bfloat16)

    def pairs_left(self, exchanges: int, left: int, pairs: int) -> None:
        """Discriminators have come so far."""
        self._tell(GroupEvent(PairsLeft(exchanges, left, pairs)))

    def skipped(self, member: Member, failure: Failure) -> None:
        """A member takes no part."""
        self._tell(GroupEvent(MemberSkipped(member.client, failure)))

    def part_lost(self, client: int, failure: Failure) -> None:
        """A client's model, from which the group should have started among others, cannot be had."""
        self._tell(GroupEvent(PartLost(client, failure)))

    def rerouted(self, member: Member, reason: str) -> None:
        """Weights went another way than declared."""
        self._tell(GroupEvent(Rerouted(member.client, reason)))
