"""A disk that loses its power, for tests: of what was written, it has what was synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Disk:
    """Notes what is synced while a test runs. Names count as kept: a file system may write them first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sizes: dict[tuple[int, int], int] = {}  # in bytes, of the files that were synced
        sync = os.fsync

        def noted(file: int) -> None:
            sync(file)
            found = os.fstat(file)
            self._sizes[found.st_dev, found.st_ino] = found.st_size

        monkeypatch.setattr(os, "fsync", noted)

    def cut(self, folder: Path) -> None:
        """The power is cut: every file below this folder loses the bytes after the last sync."""
        for path in filter(Path.is_file, folder.rglob("*")):
            found = path.stat()
            os.truncate(path, min(found.st_size, self._sizes.get((found.st_dev, found.st_ino), 0)))
