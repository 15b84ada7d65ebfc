"""What nodes and the top server agree on about local training: the algorithms' names and their options."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedgsp.errors import ConfigError
from fedgsp.options import suggestion

#: Algorithm -> its options and their defaults: whole numbers of at least 1, other numbers of at least 0.
TRAININGS: dict[str, dict[str, int | float]] = {
    "sgd": {},
    "own-head": {},
    "fedprox": {"mu": 0.1},
    "finetune": {"steps": 2},
    "per-fedavg": {"steps": 1},
    "pfedme": {"lambda": 1.0, "personal_steps": 5, "personal_rate": 0.1},
    "ditto": {"lambda": 1.0},
}

#: Those whose clients keep a head, with which they are evaluated, beside the one that they share.
KEEPS_HEAD = frozenset({"own-head"})

_MOST = 2**31 - 1  # of a whole number

#: Samples that Per-FedAvg halves at least; smaller batches are left out.
SMALLEST_BATCH = 4


def training_options(algorithm: str, given: Mapping[str, str]) -> dict[str, int | float]:
    """Every option of an algorithm, as given or its default; raises ConfigError for one that cannot be."""
    defaults = TRAININGS[algorithm]
    for name in given:
        if name not in defaults:
            remedy = suggestion(name, defaults, "it accepts")
            raise ConfigError(f"training {algorithm} has no option {name!r}", remedy)
    return {name: _number(algorithm, name, given.get(name), default) for name, default in defaults.items()}


def _number(algorithm: str, name: str, text: str | None, default: float) -> int | float:
    if text is None:
        return default
    whole = isinstance(default, int)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = -1
    if not (math.isfinite(value) and (1 <= value <= _MOST if whole else value >= 0)):
        wanted = f"a whole number from 1 to {_MOST}" if whole else "a number of at least 0"
        raise ConfigError(f"training {algorithm}: option {name} is {text!r}", f"give {wanted}")
    return value
