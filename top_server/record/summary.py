"""How well a run served each client, after the last round and after the best round; computed from its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean, standard deviation (of the population), minimum and maximum of one figure over the clients."""
    array = np.array(list(values))
    return {
        "mean": float(array.mean()),
        "std": float(array.std()),
        "min": float(array.min()),
        "max": float(array.max()),
    }


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Accuracy of each client and its spread, after the last evaluated round and at best.

    Returns None if no row has accuracies of clients. "Best" is each client's own best round, as HCCT's authors report
    it. This figure is too optimistic, because the test part chooses the round.
    """
    played = list(rows)
    evaluated = [row for row in played if row.get("accuracy_per_client")]
    if not evaluated:
        return None
    told = [row["accuracy_per_client"] for row in evaluated]
    last = {int(client): float(accuracy) for client, accuracy in told[-1].items()}
    best: dict[int, float] = {}
    for accuracies in told:
        for client, accuracy in accuracies.items():
            best[int(client)] = max(best.get(int(client), 0.0), float(accuracy))
    found: dict[str, Any] = {"rounds": played[-1].get("round")}
    for name, per_client in (("last", last), ("best", best)):
        found[name] = {**spread(per_client.values()), "per_client": dict(sorted(per_client.items()))}
    found["last"]["round"] = evaluated[-1].get("round")
    found["last"].update({name: evaluated[-1][name] for name in ("ipr", "rsd") if evaluated[-1].get(name) is not None})
    return found
