"""The source files of the project, for tests that no file goes round the one way of doing a thing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedgsp", "fedgsp_node", "fedgsp_runs", "group_manager", "top_server")


def files_with(pattern: re.Pattern[str]) -> set[str]:
    """The files of the packages in which a pattern is found, by their paths below the root."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)) for path in files if pattern.search(path.read_text())}
