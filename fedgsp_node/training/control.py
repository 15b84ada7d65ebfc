"""What a training loop is told and tells while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


class StoppedError(Exception):
    """The loop was asked to stop."""


@dataclass(slots=True)
class Control:
    """Shared by the event loop and the training thread; `mark` only grows."""

    stop: threading.Event = field(default_factory=threading.Event)
    mark: int = 0

    def tick(self) -> None:
        """Called once a batch; raises StoppedError when the work is no longer wanted."""
        self.mark += 1
        if self.stop.is_set():
            raise StoppedError
