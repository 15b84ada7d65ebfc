"""Cells of tables and values in sentences: a figure of several runs as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.results.figures import figure, values
from benchmarks.results.holds import verdict
from benchmarks.results.summary import Summary
from fedgsp.errors import ConfigError

Runs = Mapping[int, Summary]

NONE = "-"
_COMPARISONS = ("against", "claim", "margin")
_SHOWS = ("mean", "spread", "each", "difference", "verdict", "both")


def cell(column: Mapping[str, Any], ours: Runs, theirs: Runs | None, where: str) -> str:
    """The text of a figure over seeds, as the `column` of a table or a value says:

    figure    name of the figure; further entries are its options
    decimals  how many to show, if not the usual number of the figure
    show      spread: mean +- standard deviation (ddof 1) over seeds; mean: without the deviation; each: every seed
    against   a variant to compare with, seed by seed. show is then both (the mean difference, and whether the claim
              holds), difference, or verdict
    claim     higher (default) or lower: what is claimed of ours beside theirs
    margin    by how much ours may miss the claim, in the unit of the figure (default 0): with 0.5, the claim is that
              ours is above theirs - 0.5, or below theirs + 0.5
    """
    given = {key: value for key, value in column.items() if key not in ("figure", "decimals", "show", *_COMPARISONS)}
    name = column.get("figure", "")
    decimals = int(column.get("decimals", figure(name, where).decimals))
    show = column.get("show", "spread" if theirs is None else "both")
    if show not in _SHOWS:
        raise ConfigError(f"{where}: show is {show!r}", f"use one of: {', '.join(_SHOWS)}")
    found = values(ours, name, where, **given)
    if theirs is None:
        text, counted = _shown(found, decimals, show), len(found)
    else:
        other = values(theirs, name, where, **given)
        text, counted = (
            _compared(found, other, decimals, show, column.get("claim", "higher"), float(column.get("margin", 0))),
            len(found.keys() & other),
        )
    # a run without the figure, such as one that never reached a level, is not passed over in silence
    return f"{text} ({counted} of {len(ours)} seeds)" if 0 < counted < len(ours) else text


def _shown(found: dict[int, float], decimals: int, show: str) -> str:
    if show == "each":
        return ", ".join(f"{value:,.{decimals}f}" for value in found.values()) or NONE
    return spread(list(found.values()), decimals, show == "spread")


def spread(found: list[float], decimals: int = 2, deviation: bool = True) -> str:
    """The mean of values, and with more than one their standard deviation (ddof 1)."""
    if not found:
        return NONE
    mean = f"{np.mean(found):,.{decimals}f}"
    return f"{mean} +- {np.std(found, ddof=1):,.{decimals}f}" if deviation and len(found) > 1 else mean


def _compared(
    ours: dict[int, float], theirs: dict[int, float], decimals: int, show: str, claim: str, margin: float
) -> str:
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return NONE
    difference = f"{np.mean([ours[seed] - theirs[seed] for seed in both]):+,.{decimals}f}"
    if show == "difference":
        return difference
    higher, lower = (ours, theirs) if claim == "higher" else (theirs, ours)
    found = verdict({seed: value + margin for seed, value in higher.items()}, lower)
    return found if show == "verdict" else f"{difference}: {found}"
