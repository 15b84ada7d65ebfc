"""The size of a round: how many groups the clients form, how many members a group has, and how many groups train.

The number M of groups follows a growth function (FedGSP). There are three modes for K clients that M does not divide:

exact  M groups of floor(K/M) clients; the other K mod M clients are idle in this round
paper  floor(K/L) groups of L = floor(K/M) clients: M groups or more, and fewer than L clients are idle
all    as exact, but the other clients join different random groups: groups of floor(K/M) and ceil(K/M) clients

`alpha` > 0 is the speed of growth. `beta` >= 1 is the number of groups in round 1, and the step by which the number
grows. Rounds count from 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedgsp.errors import ConfigError, RunError
from fedgsp.parts import Part, Parts

T = TypeVar("T")

MODES = ("exact", "paper", "all")
#: What the modes mean, for `--help`.
MODE_HELP = (
    "when groups do not divide the clients evenly: leave some out of the round (exact), make more groups (paper), "
    "or larger ones (all)"
)

#: Added to a product such as 0.1 * 10, which rounding may have left just below an integer or a half.
_EPSILON = 1e-9
_LARGEST_EXPONENT = 700.0  # e**709 is the last finite double


def _exp(round_number: int, alpha: float) -> float:
    if (round_number - 1) * math.log1p(alpha) > _LARGEST_EXPONENT:
        return math.inf
    return float((1 + alpha) ** (round_number - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth(Part):
    """The declaration of a growth. Its `code` is a pure function `(round, alpha) -> number` of at least 1.

    The floor of the number, times beta, is the number of groups of the round. The same round must give the same
    number in every process: nothing is kept from round to round. A growth has no options but alpha.
    """


GROWTHS: Parts[Growth] = Parts(
    "growth",
    {
        "linear": Growth(
            help="alpha (round - 1) + 1", code=lambda round_number, alpha: alpha * (round_number - 1) + 1
        ),
        "log": Growth(help="alpha ln(round) + 1", code=lambda round_number, alpha: alpha * math.log(round_number) + 1),
        "exp": Growth(help="(1 + alpha)^(round - 1)", code=_exp),
        "constant": Growth(help="1: as many groups in every round", code=lambda _round_number, _alpha: 1.0),
    },
    Growth,
)


def group_count(name: str, round_number: int, alpha: float, beta: int, clients: int, smallest: int = 1) -> int:
    """The number of groups of a round: beta * floor(growth), at least 1.

    Raises ConfigError for another name, and RunError for a fault of a growth of a package.

    It is limited so that each group can have `smallest` clients.
    """
    ConfigError.require(name in GROWTHS, f"no growth is called {name!r}", f"use one of: {', '.join(GROWTHS)}")
    growth = GROWTHS[name]
    with growth.guard():
        grown = float(growth.load()(round_number, alpha))
    RunError.require(
        grown >= 1, f"{growth} gives {grown:g} in round {round_number}", "correct it: a growth gives at least 1"
    )
    steps = math.floor(min(grown, clients) + _EPSILON)
    return min(beta * steps, max(1, clients // smallest))


def shape_for(clients: int, groups: int, mode: str) -> tuple[int, int]:
    """How many groups K = `clients` and M = `groups` give, and how many clients each group has: at least one."""
    groups = min(groups, clients)
    members = clients // groups
    return clients // members if mode == "paper" else groups, members


def hand_out(groups: list[list[int]], rest: Sequence[int], rng: np.random.Generator) -> None:
    """Adds the clients of `rest` to different random groups, in place; `rest` is no longer than `groups`."""
    for group, client in zip(rng.permutation(len(groups))[: len(rest)].tolist(), rest, strict=True):
        groups[group].append(client)


def sample_size(total: int, rate: float) -> int:
    """The share `rate` of `total`, rounded half up, at least 1; 0 < rate <= 1."""
    return max(1, math.floor(rate * total + 0.5 + _EPSILON))


def sample(items: Sequence[T], rate: float, rng: np.random.Generator) -> tuple[T, ...]:
    """A uniform random sample without replacement. The drawn items keep their order."""
    chosen = rng.choice(len(items), size=sample_size(len(items), rate), replace=False)
    return tuple(items[i] for i in sorted(chosen.tolist()))
