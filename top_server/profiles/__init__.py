"""Profiles: what clients reveal of themselves before they are grouped. One file each, one line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from top_server.profiles import histograms, nothing
from top_server.run import Run

#: Gathers what is not known yet in a round; returns the clients that can be grouped, ascending.
Profile = Callable[[Run, int], Awaitable[list[int]]]

PROFILES: dict[str, Profile] = {
    "none": nothing.gather,
    "histograms": histograms.gather,
}
