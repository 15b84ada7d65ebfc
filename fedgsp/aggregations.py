"""What group managers and the top server agree on about aggregations of models trained in parallel: their names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aggregating:
    """What is to be known of one before a group is run."""

    #: Whether a scheme may name it whose groups relay: they have one model, so it says nothing there.
    beside_relay: bool = False
    #: Whether it keeps a few models, whatever they are, from moving the result far.
    robust: bool = False
    #: Whether it reads option `trim`, which it is then named with: trimmed-mean:0.2.
    trims: bool = False


#: Those of `group_manager.aggregations`.
AGGREGATIONS: dict[str, Aggregating] = {
    "mean": Aggregating(beside_relay=True),
    "fednova": Aggregating(),
    "median": Aggregating(robust=True),
    "trimmed-mean": Aggregating(robust=True, trims=True),
}
