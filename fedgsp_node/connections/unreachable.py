"""Addresses that could not be reached a short time ago."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

#: For so long, in seconds, an address is tried last after it could not be reached: at first, and at most. The time
#: doubles with each failure. A peer may be busy or cut off for a moment, and it may be behind a firewall for good.
FIRST_S, LONGEST_S = 10.0, 300.0
#: Largest number of addresses that are remembered.
MOST_ADDRESSES = 4096


class Unreachable:
    """Remembers which addresses failed, and for how long each is to be avoided."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Address -> until when, and how long that is.
        self._avoided: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __contains__(self, address: str) -> bool:
        """Whether the address is to be tried last."""
        return self._clock() < self._avoided.get(address, (-math.inf, 0.0))[0]

    def failed(self, address: str) -> None:
        """The address could not be reached."""
        now = self._clock()
        until, length = self._avoided.pop(address, (-math.inf, FIRST_S / 2))
        if now >= until:  # other attempts that failed at the same time are no news
            length = min(2 * length, LONGEST_S)
            until = now + length
        self._avoided[address] = until, length
        while len(self._avoided) > MOST_ADDRESSES:
            self._avoided.popitem(last=False)

    def answered(self, address: str) -> None:
        """The address was reached."""
        self._avoided.pop(address, None)
