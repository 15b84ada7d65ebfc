"""How long a client may show no sign of life: what has been seen so far decides, up to what the run allows."""

from __future__ import annotations

from collections import defaultdict

#: Orders of a kind that must have ended before their pace says anything.
LEAST_ENDED = 3
#: Times the longest silence seen; clients differ, and so do their machines.
FACTOR = 10.0
#: However fast the others were: a machine may be busy for a while.
LEAST_S = 15.0


class Pace:
    """The longest silences within orders that ended well, by kind of order."""

    def __init__(self) -> None:
        self._longest: defaultdict[str, float] = defaultdict(float)
        self._ended: defaultdict[str, int] = defaultdict(int)

    def note(self, kind: str, silence_s: float) -> None:
        """An order ended that was never silent for longer."""
        self._longest[kind] = max(self._longest[kind], silence_s)
        self._ended[kind] += 1

    def deadline_s(self, kind: str, most_s: float) -> float:
        """After so long a silence an order of this kind has stalled."""
        if self._ended[kind] < LEAST_ENDED:
            return most_s
        return min(most_s, max(LEAST_S, FACTOR * self._longest[kind]))
