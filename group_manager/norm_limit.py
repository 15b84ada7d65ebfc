"""Whether an update is much longer than others, as those of diverged or malicious clients are."""

import statistics
from collections.abc import Iterable, Sequence

from fedgsp.messages import Failure, FailureCode

#: Updates that must be known before any is judged.
LEAST = 3


class Lengths:
    """Lengths of accepted updates, by which further updates are judged."""

    def __init__(self, accepted: Iterable[float], most_ratio: float) -> None:
        self._accepted = list(accepted)
        self._most_ratio = most_ratio

    def usual(self, waiting: Sequence[float]) -> float | None:
        """The median length, by which the `waiting` updates are judged; None while too few lengths are known.

        The waiting updates count in the median only while too few have been accepted.
        """
        known = self._accepted if len(self._accepted) >= LEAST else [*self._accepted, *waiting]
        return statistics.median(known) if len(known) >= LEAST else None

    def judge(self, length: float, usual: float) -> Failure | None:
        """Accepts an update, so that it counts in later medians, or returns why it is refused."""
        if length > self._most_ratio * usual:
            ratio = f"more than {self._most_ratio:g} times the median, {usual:.3g}"
            return Failure(FailureCode.LONG_UPDATE, f"its update has length {length:.3g}, {ratio}")
        self._accepted.append(length)
        return None
