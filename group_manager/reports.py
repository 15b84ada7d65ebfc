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
    NetworksLeft,
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

    def tell(self, kind: MemberDone | MemberSkipped | NetworksLeft | PartLost | Rerouted) -> None:
        """Sends one event."""
        self._tell(GroupEvent(kind))

    def done(self, member: Member, position: int, result: Result, update_length: float = 0.0) -> None:
        """A member finished its order; `update_length` is 0 if it was not measured."""
        self.count(result)
        self.tell(MemberDone(member.client, position, result, update_length))

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

    def skipped(self, member: Member, failure: Failure) -> None:
        """A member takes no part, or no further part."""
        self.reason = failure
        self.tell(MemberSkipped(member.client, failure))
