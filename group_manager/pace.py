"""After how long without a report an order has stalled, learned from earlier orders."""

from collections import defaultdict

#: Orders of a kind that must have ended before a limit is derived from them.
LEAST_ENDED = 3
#: The limit is this many times the longest silence so far: clients and their machines differ.
FACTOR = 10.0
#: Lowest limit, in seconds: a machine may be busy for a while.
LEAST_S = 15.0


#: Kind of order, node and client.
Whose = tuple[str, str, int]


class Pace:
    """The longest silence within orders that ended well, by kind of order.

    Limits derived from it hold for clients whose own orders of that kind ended well. A client without such orders may
    be slower than all others, and a client that has just stalled may have become slower: both get the time that the
    run allows. A node that stalled for all of that time seems to hang; it does not get so much time twice.
    """

    def __init__(self) -> None:
        self._longest: defaultdict[str, float] = defaultdict(float)
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._known: set[Whose] = set()
        self._hanging: set[tuple[str, str]] = set()  # (kind of order, node)

    def note(self, whose: Whose, silence_s: float) -> None:
        """An order ended well; `silence_s` is its longest time without a report."""
        kind, node, _ = whose
        self._longest[kind] = max(self._longest[kind], silence_s)
        self._ended[kind] += 1
        self._known.add(whose)
        self._hanging.discard((kind, node))

    def note_stall(self, whose: Whose, given_s: float, most_s: float) -> None:
        """An order stalled after `given_s` seconds, of the `most_s` seconds that the run allows."""
        if given_s < most_s:
            self._known.discard(whose)
        else:
            self._known.add(whose)
            self._hanging.add(whose[:2])

    def forget_stalls(self, node: str) -> None:
        """A node attached; perhaps it was restarted because it hung."""
        self._hanging = {(kind, other) for kind, other in self._hanging if other != node}

    def deadline_s(self, whose: Whose, most_s: float) -> float:
        """Seconds without a report after which this order has stalled; at most `most_s`."""
        kind, node, _ = whose
        bound = whose in self._known or (kind, node) in self._hanging
        if not bound or self._ended[kind] < LEAST_ENDED:
            return most_s
        return min(most_s, max(LEAST_S, FACTOR * self._longest[kind]))
