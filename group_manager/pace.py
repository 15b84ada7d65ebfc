"""After how long without a report an order has stalled, learned from earlier orders."""

from collections import defaultdict
from statistics import median_high

#: Orders of a kind that must have ended before a limit is derived from them.
LEAST_ENDED = 3
#: The limit is this many times the longest silence so far: clients and their machines differ.
FACTOR = 10.0
#: Lowest limit, in seconds: a machine may be busy for a while.
LEAST_S = 15.0
#: A silent order may take this many times the stall timeout while its node computes, for one long batch; and this many
#: times what is typical of other nodes: a site may be 20 times slower, and its machine busy.
COMPUTES, SLOWER = 20.0, 40.0


#: Kind of order, node and client.
Whose = tuple[str, str, int]


class Pace:
    """The longest silence within orders that ended well, by kind of order and node.

    Limits derived from it hold for clients whose own orders of that kind ended well. A client without such orders may
    be slower than all others, and a client that has just stalled may have become slower: both get the time that the
    run allows. A node that stalled for all of that time seems to hang; it does not get so much time twice.
    """

    def __init__(self) -> None:
        self._longest: defaultdict[str, dict[str, float]] = defaultdict(dict)  # by kind of order, then by node
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._known: set[Whose] = set()
        self._hanging: set[tuple[str, str]] = set()  # (kind of order, node)

    def note(self, whose: Whose, silence_s: float) -> None:
        """An order ended well; `silence_s` is its longest time without a report."""
        kind, node, _ = whose
        of_kind = self._longest[kind]
        of_kind[node] = max(of_kind.get(node, 0.0), silence_s)
        self._ended[kind] += 1
        self._known.add(whose)
        self._hanging.discard((kind, node))

    def note_stall(self, whose: Whose, given_s: float, most_s: float) -> None:
        """An order stalled after `given_s` seconds, of the `most_s` seconds that it could have."""
        if given_s < most_s:
            self._known.discard(whose)
        else:
            self._known.add(whose)
            self._hanging.add(whose[:2])

    def forget_stalls(self, node: str) -> None:
        """A node attached; perhaps it was restarted because it hung."""
        self._hanging = {(kind, other) for kind, other in self._hanging if other != node}

    def most_s(self, whose: Whose, stall_timeout_s: float, computes: bool) -> float:
        """Seconds without a report that this order may have at most: the stall timeout, or more for a slow site.

        `computes`: the node reports no progress, but its training uses the processor.
        """
        kind, node, _ = whose
        others = [silence_s for other, silence_s in self._longest[kind].items() if other != node]
        typical_s = median_high(others) if others else 0.0  # a minority of nodes cannot choose it
        return max(stall_timeout_s * (COMPUTES if computes else 1.0), SLOWER * typical_s)

    def deadline_s(self, whose: Whose, most_s: float) -> float:
        """Seconds without a report after which this order has stalled; at most `most_s`."""
        kind, node, _ = whose
        bound = whose in self._known or (kind, node) in self._hanging
        if not bound or self._ended[kind] < LEAST_ENDED:
            return most_s
        return min(most_s, max(LEAST_S, FACTOR * max(self._longest[kind].values())))
