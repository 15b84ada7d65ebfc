"""How many groups K clients form, and how many members a group has: three modes for K that M does not divide.

exact  M groups of floor(K/M) clients; the other K mod M clients are idle in this round
paper  floor(K/L) groups of L = floor(K/M) clients: M groups or more, and fewer than L clients are idle
all    as exact, but the other clients join different random groups: groups of floor(K/M) and ceil(K/M) clients
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """The shape for K = `clients` and M = `groups`. With more groups than clients, each group has one client."""
    groups = min(groups, clients)
    members = clients // groups
    return Shape(clients // members if mode == "paper" else groups, members)


def hand_out(groups: list[list[int]], rest: Sequence[int], rng: np.random.Generator) -> None:
    """Adds the clients of `rest` to different random groups, in place; `rest` is no longer than `groups`."""
    chosen = rng.permutation(len(groups))[: len(rest)]
    for group, client in zip(chosen.tolist(), rest, strict=True):
        groups[group].append(client)
