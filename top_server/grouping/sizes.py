"""How many groups of how many members K clients make: three ways to treat K that M does not divide.

exact  M groups of floor(K/M); the K mod M others idle this round
paper  floor(K/L) groups of L = floor(K/M), so M groups or more and almost nobody idle
all    as exact, then the others join random groups, one each: sizes floor(K/M) and ceil(K/M)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

MODES = ("exact", "paper", "all")
#: What the modes mean, for `--help`.
MODE_HELP = (
    "when groups do not divide the clients evenly: leave some out of the round (exact), make more groups (paper), "
    "or larger ones (all)"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """`groups` groups of `members` clients each."""

    groups: int
    members: int

    @property
    def clients(self) -> int:
        """Clients in all groups together."""
        return self.groups * self.members


def shape_for(clients: int, groups: int, mode: str) -> Shape:
    """The shape for K = `clients` and M = `groups`, where more groups than clients means one client each."""
    groups = min(groups, clients)
    members = clients // groups
    return Shape(clients // members if mode == "paper" else groups, members)


def hand_out(groups: list[list[int]], rest: Sequence[int], rng: np.random.Generator) -> None:
    """Add the clients of `rest` to different random groups, in place; `rest` is no longer than `groups`."""
    chosen = rng.permutation(len(groups))[: len(rest)]
    for group, client in zip(chosen.tolist(), rest, strict=True):
        groups[group].append(client)
