"""Stops a training loop from outside, and shows its progress."""

import math
import threading
import time
from dataclasses import dataclass, field

from fedgsp.messages import Failure, FailureCode


class StoppedError(Exception):
    """The training loop was stopped, on request or because its time is over; `failure` says why."""

    def __init__(self, code: FailureCode = FailureCode.CANCELLED, why: str = "the order was called off") -> None:
        super().__init__(why)
        self.failure = Failure(code, why)


@dataclass(slots=True)
class Control:
    """Shared by the event loop, which may set `stop`, and the training thread, which increases `mark`."""

    stop: threading.Event = field(default_factory=threading.Event)
    mark: int = 0
    #: The policy of the node stops work that takes longer, in seconds.
    most_s: float = math.inf
    begun: float = field(default_factory=time.monotonic)

    def tick(self) -> None:
        """Counts a batch; the training thread calls it after each. StoppedError if `stop` is set or time is over."""
        self.mark += 1
        if self.stop.is_set():
            raise StoppedError
        if time.monotonic() - self.begun > self.most_s:
            raise StoppedError(
                FailureCode.POLICY,
                f"it takes longer than {self.most_s:g} s, and most_seconds of the policy of this node is"
                f" {self.most_s:g}: its owner can allow it (--allow most_seconds=...)",
            )
