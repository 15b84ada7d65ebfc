"""Small disks for the folders of a run, which a fault can fill: needs Linux and root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

SIZE = 64 << 20
#: The file that fills a disk.
_FILLER = "of-others"


@contextlib.contextmanager
def small(folders: Iterable[Path]) -> Iterator[None]:
    """A context in which each folder is a disk of its own. Afterwards the folders have the same files."""
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "tmpfs", folder], check=True)
            stack.callback(_keep_files, folder)
        yield


def fill(folder: Path) -> None:
    """Takes all bytes that are free on the disk of a folder."""
    with (folder / _FILLER).open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(1 << 16))


def empty(folder: Path) -> None:
    """Frees the bytes that `fill` has taken."""
    (folder / _FILLER).unlink(missing_ok=True)


def _keep_files(folder: Path) -> None:
    """Unmounts the disk of a folder, and puts its files into the folder below."""
    copy = folder.with_name(f"{folder.name}.copy")
    shutil.copytree(folder, copy, symlinks=True)
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()
    os.replace(copy, folder)
