"""Events of a running group for the top server, and a count of the bytes of models that were moved."""

from __future__ import annotations

from collections.abc import Callable

from fedgsp.encoding import wire_bytes
from fedgsp.messages import (
    Discriminated,
    Evaluated,
    Failure,
    FailureCode,
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
    """Sends the events of one group, and counts bytes."""

    def __init__(self, tell: Callable[[GroupEvent], None]) -> None:
        self._tell = tell
        self.bytes_direct = self.bytes_relayed = 0
        #: Why the last member was skipped.
        self.reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")

    def done(self, member: Member, position: int, result: Result, update_length: float = 0.0) -> None:
        """A member finished its order; `update_length` is 0 if it was not measured."""
        self.count(result)
        self._tell(GroupEvent(MemberDone(member.client, position, result, update_length)))

    def count(self, result: Result) -> None:
        """Adds the bytes that a member fetched for an order."""
        if isinstance(result, Trained | Evaluated | Discriminated) and result.source is not None:
            if result.source.kind is SourceKind.NODE:
                self.bytes_direct += result.bytes
            else:
                self.bytes_relayed += result.bytes

    def count_relayed(self, weights: Weights) -> None:
        """Adds the bytes of a model that came to this manager."""
        self.bytes_relayed += wire_bytes(weights.tensors, weights.bfloat16)

    def pairs_left(self, exchanges: int, left: int, pairs: int) -> None:
        """After so many exchanges, the discriminators of `left` of all `pairs` still learn."""
        self._tell(GroupEvent(PairsLeft(exchanges, left, pairs)))

    def skipped(self, member: Member, failure: Failure) -> None:
        """A member takes no part, or no further part."""
        self.reason = failure
        self._tell(GroupEvent(MemberSkipped(member.client, failure)))

    def part_lost(self, client: int, failure: Failure) -> None:
        """A client's model cannot be had; the group's start is the mean of the other parts."""
        self._tell(GroupEvent(PartLost(client, failure)))

    def rerouted(self, member: Member, reason: str) -> None:
        """A member gets its start in another way, or from another member, than declared."""
        self._tell(GroupEvent(Rerouted(member.client, reason)))
