"""Stops a training loop from outside, and shows its progress."""

import threading
from dataclasses import dataclass, field


class StoppedError(Exception):
    """The training loop was stopped on request."""


@dataclass(slots=True)
class Control:
    """Shared by the event loop, which may set `stop`, and the training thread, which increases `mark`."""

    stop: threading.Event = field(default_factory=threading.Event)
    mark: int = 0

    def tick(self) -> None:
        """Counts a batch; the training thread calls it after each. StoppedError if `stop` is set."""
        self.mark += 1
        if self.stop.is_set():
            raise StoppedError
