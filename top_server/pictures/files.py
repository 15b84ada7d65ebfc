"""Writes pictures and reports where a command says, or beside the run that they show."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedgsp.files import in_place, write_all


def write_out(out: Path, content: bytes, run_dirs: Collection[Path] = ()) -> None:
    """Writes a file whole, or leaves none; raises OSError.

    A link is followed only if the user has named it: a link in one of `run_dirs` may be of somebody else.
    """
    with open(out, "wb", buffering=0, opener=in_place if out.parent in run_dirs else None) as file:
        try:
            write_all(file, content)
        except OSError:
            if out.is_file():  # and no device
                out.unlink()
            raise
