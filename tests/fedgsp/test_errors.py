"""What is said of a file that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from fedgsp.errors import RunError, not_written
from fedgsp.files import write_secret


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room on that disk"),
        (errno.EDQUOT, "make room on that disk"),
        (errno.EACCES, "let this user write there, or choose another place"),
        (errno.ENOENT, "make the folder that it belongs in"),
        (errno.ENOTDIR, "a part of this path is a file and no folder: choose another path"),
        (errno.EISDIR, "there is a folder of that name: choose another name"),
        (errno.EIO, "check that path, and the disk"),
    ],
)
def test_the_remedy_fits_the_error_of_the_operating_system(number: int, remedy: str) -> None:
    error = not_written("x", OSError(number, os.strerror(number)))
    assert (error.what, error.remedy) == (f"x cannot be written: {os.strerror(number)}", remedy)
    of_rust = f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"
    assert not_written("x", SafetensorError(of_rust)).remedy == remedy


def test_an_error_without_a_number_has_a_remedy_too() -> None:
    assert not_written("x", SafetensorError("odd")).remedy == "check that path, and the disk"


def test_a_secret_whose_folder_is_a_file_is_an_error_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written: Not a directory; a part of this path is a file"):
        write_secret(tmp_path / "file" / "key", b"")
