"""A grouping by numbers of samples, and a broken one."""

from __future__ import annotations

import numpy as np

from fedgsp.parts import NoOptions
from top_server.grouping import GroupingRequest, Plan

from .declared import BySizeOptions


def by_size(request: GroupingRequest, options: BySizeOptions) -> Plan:
    """Groups of neighbours by evidence `size`, shape (N, 1)."""
    order = np.argsort(request.matrices["size"][:, 0], kind="stable").tolist()
    rows = [order[first : first + options.members] for first in range(0, len(order), options.members)]
    return Plan.from_rows(rows, request)


def broken(request: GroupingRequest, options: NoOptions) -> Plan:
    """Raises KeyError."""
    return Plan.from_rows([[int(request.matrices["nothing"][0, 0])]], request)
