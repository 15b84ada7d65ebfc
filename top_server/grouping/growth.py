"""How many groups a round has (FedGSP, eqs. of the growth functions).

`alpha` > 0 is the speed of growth. `beta` >= 1 is the number of groups in round 1, and the step by which the number
grows. Rounds count from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedgsp.errors import ConfigError

#: Added to a product such as 0.1 * 10, which rounding may have left just below an integer.
_EPSILON = 1e-9
_LARGEST_EXPONENT = 700.0  # e**709 is the last finite double


def _linear(round_number: int, alpha: float) -> float:
    return alpha * (round_number - 1) + 1


def _log(round_number: int, alpha: float) -> float:
    return alpha * math.log(round_number) + 1


def _exp(round_number: int, alpha: float) -> float:
    if (round_number - 1) * math.log1p(alpha) > _LARGEST_EXPONENT:
        return math.inf
    return float((1 + alpha) ** (round_number - 1))


def _constant(_round_number: int, _alpha: float) -> float:
    return 1.0


#: Name -> growth(round, alpha): the real number whose floor is multiplied by beta.
GROWTHS: dict[str, Callable[[int, float], float]] = {
    "linear": _linear,
    "log": _log,
    "exp": _exp,
    "constant": _constant,
}


def group_count(name: str, round_number: int, alpha: float, beta: int, clients: int) -> int:
    """The number of groups of a round: beta * floor(growth), limited to 1 .. clients; ConfigError for bad settings."""
    check_growth(name, alpha, beta)
    if round_number < 1 or clients < 1:
        raise ValueError(f"round {round_number} and {clients} clients: both count from 1")
    steps = math.floor(min(GROWTHS[name](round_number, alpha), clients) + _EPSILON)
    return min(beta * steps, clients)


def check_growth(name: str, alpha: float, beta: int) -> None:
    """Raises ConfigError for an unknown growth, alpha <= 0 or beta < 1."""
    if name not in GROWTHS:
        raise ConfigError(f"no growth is called {name!r}", f"use one of: {', '.join(GROWTHS)}")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"growth {name} has alpha {alpha}", "alpha is a number above 0")
    if beta < 1:
        raise ConfigError(f"growth {name} has beta {beta}", "beta is an integer of at least 1")
