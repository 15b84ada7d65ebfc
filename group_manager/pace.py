"""How long a client may show no sign of life: what has been seen so far decides, up to what the run allows."""

from __future__ import annotations

from collections import defaultdict

#: Orders of a kind that must have ended before their pace says anything.
LEAST_ENDED = 3
#: Times the longest silence seen; clients differ, and so do their machines.
FACTOR = 10.0
#: However fast the others were: a machine may be busy for a while.
LEAST_S = 15.0


#: Kind of order, node and client.
Whose = tuple[str, str, int]


class Pace:
    """The longest silences within orders that ended well, by kind of order: they bind clients whose own did.

    A client that nothing is known of may be slower than all others, and one that just stalled may have become so: it
    has all that the run allows. A node that stalled for so long seems to hang, which is not waited for twice.
    """

    def __init__(self) -> None:
        self._longest: defaultdict[str, float] = defaultdict(float)
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._known: set[Whose] = set()
        self._hanging: set[tuple[str, str]] = set()  # kind of order, node

    def note(self, whose: Whose, silence_s: float) -> None:
        """An order ended well that was never silent for longer."""
        kind, node, _ = whose
        self._longest[kind] = max(self._longest[kind], silence_s)
        self._ended[kind] += 1
        self._known.add(whose)
        self._hanging.discard((kind, node))

    def note_stall(self, whose: Whose, given_s: float, most_s: float) -> None:
        """An order stalled that was given so long, of what the run allows."""
        if given_s < most_s:
            self._known.discard(whose)
        else:
            self._known.add(whose)
            self._hanging.add(whose[:2])

    def forget_stalls(self, node: str) -> None:
        """A node came, perhaps restarted because it hung."""
        self._hanging = {(kind, other) for kind, other in self._hanging if other != node}

    def deadline_s(self, whose: Whose, most_s: float) -> float:
        """After so long a silence this order has stalled."""
        kind, node, _ = whose
        bound = whose in self._known or (kind, node) in self._hanging
        if not bound or self._ended[kind] < LEAST_ENDED:
            return most_s
        return min(most_s, max(LEAST_S, FACTOR * self._longest[kind]))
