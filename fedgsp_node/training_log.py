"""Log lines about the training on a node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fedgsp.messages import Trained
from fedgsp.words import counted

logger = logging.getLogger(__name__)

#: Shortest time between two lines, because a node with many clients may train hundreds of times per second.
INTERVAL_S = 5.0


class TrainingLog:
    """Counts the trainings of a node, and logs at most one of them every `INTERVAL_S` seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_line = -float("inf")
        self._unlogged = 0
        #: Number of trainings since the node started.
        self.total = 0

    def add(self, round_number: int, group: int, client: int, trained: Trained) -> None:
        """Counts a training of a client, and logs it if the last line is old enough."""
        self.total += 1
        if self._now() < self._next_line:
            self._unlogged += 1
            return
        more = f"; {counted(self._unlogged, 'other training')} since the last line" if self._unlogged else ""
        head = f"round={round_number} group={group} client={client}"
        samples = counted(trained.samples, "sample")
        logger.info("%s trained on %s in %.1f s, loss %.4f%s", head, samples, trained.seconds, trained.loss, more)
        self._unlogged = 0
        self._next_line = self._now() + INTERVAL_S
