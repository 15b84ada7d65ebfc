"""Modules that are written for nodes."""

from __future__ import annotations

from typing import Any


def written(text: str) -> dict[str, Any]:
    """What a module with this text defines."""
    found: dict[str, Any] = {"__name__": "written"}
    exec(compile(text, "written.py", "exec", dont_inherit=True), found)
    return found
