from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from fedgsp.locks import try_lock


def test_a_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("ab") as first, path.open("ab") as second:
        assert try_lock(first)
        assert not try_lock(second)
        first.close()
        assert try_lock(second)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)  # as Lustre does that is not mounted with flock
    with (tmp_path / "file").open("ab") as file:
        assert try_lock(file)


def test_another_failure_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("ab") as file:
        os.dup2(os.open(os.devnull, os.O_PATH), file.fileno())
        with pytest.raises(OSError, match="Bad file descriptor"):
            try_lock(file)
