"""Fixtures of the programs."""

from __future__ import annotations

import pytest

from group_manager.programs import window


@pytest.fixture(params=[window.MOST_BROUGHT_BYTES, 0], ids=["brought", "asked-for"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members bring their models, and then none does."""
    monkeypatch.setattr(window, "MOST_BROUGHT_BYTES", request.param)
