"""How long clients take for their turns in relays, by the record of the run.

A turn is measured by the group manager: from the end of the turn before, or the begin of the relay, until the result
of the client is reported. So it has the transfer of the model in it. What is expected is a pure function of the lines
of events.jsonl: the same record gives the same times, also after `--resume`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

#: So many turns of a client count, the last ones.
WINDOW = 5
#: Floating-point operations per second of a client of which nothing is known, as in the cost model (section 1.7).
_FLOP_PER_SECOND = 567e9


@dataclass(frozen=True, slots=True)
class Expected:
    """How long the turn of each client is expected to take."""

    seconds: Mapping[int, float]
    #: The clients without a turn so far: the time follows from their samples, and from the turns of others.
    by_samples: tuple[int, ...]


class Turns:
    """The last turns of each client, in seconds per training sample."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, float]]] = {}  # client -> (round, seconds per sample), in recorded order

    def note(self, line: Mapping[str, Any]) -> None:
        """Notes a line of events.jsonl; raises KeyError, TypeError or ValueError if it is damaged."""
        if line.get("event") != "hop_finished" or line.get("turn") is None:
            return
        number, client = int(line["round"]), int(line["client"])
        known = self._of.get(client, [])
        # Turns of this round do not count until the next round.
        before, now = [one for one in known if one[0] < number], [one for one in known if one[0] >= number]
        self._of[client] = [*before[-WINDOW:], *now, (number, float(line["turn"]) / max(1, int(line["samples"])))]

    def expected(self, number: int, samples: Mapping[int, int], flop: int) -> Expected:
        """What to expect of round `number`, by the turns of the rounds before it.

        `samples` are the training samples of each client, `flop` is the cost of training on one sample (0: unknown).
        The rate of a client is the low median of its last turns: a disturbance makes a turn longer, never shorter, so
        that of two turns the shorter one counts. A client without turns has the typical rate of all others.
        """
        rates = {}
        for client in samples:
            turns = [rate for round_number, rate in self._of.get(client, ()) if round_number < number]
            if turns:
                rates[client] = median_low(turns[-WINDOW:])
        typical = median_low(rates.values()) if rates else max(1, flop) / _FLOP_PER_SECOND
        return Expected(
            {client: rates.get(client, typical) * max(1, count) for client, count in samples.items()},
            tuple(sorted(samples.keys() - rates.keys())),
        )
