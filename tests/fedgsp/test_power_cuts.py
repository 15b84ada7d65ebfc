"""What a power cut leaves of a file that was put in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.files import put
from tests.support.power import Disk


def test_a_file_that_was_put_in_its_place_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "config.toml"
    for content in (b"rounds = 1\n", b"rounds = 2\n"):
        put(path, content)
        disk.cut(tmp_path)
        assert path.read_bytes() == content
