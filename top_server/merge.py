"""How the results of the groups of a round become one model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fedgsp.aggregation import Mean

if TYPE_CHECKING:
    from collections.abc import Callable

#: Name -> maker of the fold for one round; None where every group keeps a model of its own.
MERGES: dict[str, Callable[[], Mean] | None] = {
    "mean": partial(Mean, weighted=False),
    "weighted-mean": partial(Mean, weighted=True),
    "none": None,
}
