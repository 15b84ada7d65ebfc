"""How much trimmed means leave out: the same option of the merge and of the aggregation of that name."""

from __future__ import annotations

from collections.abc import Mapping

from fedgsp.robust import DEFAULT_TRIM
from top_server.grouping.options import Options

TRIMMED = "trimmed-mean"
TRIM_OPTIONS = ("trim",)


def read_trim(kind: str, given: Mapping[str, str]) -> float:
    """The share of the models that is left out at either end; raises ConfigError."""
    return Options(TRIMMED, given, TRIM_OPTIONS, kind).number("trim", DEFAULT_TRIM, below=0.5)
