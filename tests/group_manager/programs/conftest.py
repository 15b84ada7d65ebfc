"""Fixtures of the programs."""

from __future__ import annotations

import pytest

from group_manager.members import Members
from group_manager.programs import window


@pytest.fixture(params=["brought", "asked-for", "asked-for-here"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members bring their models, and then none does, from other machines and from that of the manager."""
    if request.param != "brought":
        monkeypatch.setattr(window, "MOST_BROUGHT_BYTES", 0)
    if request.param == "asked-for-here":
        monkeypatch.setattr(Members, "near", lambda _, __: True)
