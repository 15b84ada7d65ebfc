"""By how much clients are better off together than alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def gained(reached: Mapping[int, float], alone: Mapping[int, float]) -> dict[int, float]:
    """Client -> its gain in accuracy over training alone; for clients in both mappings, in ascending order."""
    return {client: reached[client] - alone[client] for client in sorted(reached.keys() & alone.keys())}


def gains(reached: Mapping[int, float], alone: Mapping[int, float]) -> tuple[float, float] | None:
    """IPR, the share of clients that are strictly better off than alone, and RSD, the deviation of their gains.

    Only clients in both mappings count; None if there are none. The deviation is that of the population (FedCollab,
    section 5.5).
    """
    differences = np.array(list(gained(reached, alone).values()))
    if not differences.size:
        return None
    return float((differences > 0).mean()), float(differences.std())
