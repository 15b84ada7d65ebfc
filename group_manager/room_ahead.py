"""How many models may come before their turn: bounded by memory, by disk, and by the links that they share."""

from __future__ import annotations

import os
from collections.abc import Callable

from fedgsp.tensors.spill import SPILLED_BYTES, spill_folder

#: Memory for models that came before their turn, in bytes, of all groups of a manager together.
AHEAD_BYTES = 256 << 20
#: Memory that a model in a file takes while it comes (`fedgsp.tensors.spill`).
FILE_BYTES = 32 << 20
#: Most transfers at once: more would fill no link better, and each has bytes in the queue of this manager's own link.
TRANSFERS = 32
#: Disk for so many models of their turn stays free.
IN_TURN = 3


def free_disk() -> int:
    """Bytes that are free where large models are."""
    try:
        disk = os.statvfs(spill_folder())
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize


class RoomAhead:
    """Counts the models that come before their turn."""

    def __init__(
        self, most_bytes: int = AHEAD_BYTES, transfers: int = TRANSFERS, free: Callable[[], int] = free_disk
    ) -> None:
        self._bytes = most_bytes
        self._transfers = transfers
        self._free = free
        self._on_disk = 0
        self._refused: dict[Callable[[], None], None] = {}  # in the order of their refusals

    def take(self, size: int, again: Callable[[], None]) -> bool:
        """Whether one more model of `size` bytes may come. It counts until `give`, and as a transfer until `came`.

        If not, `again` is called once when that may have changed.
        """
        in_file = size >= SPILLED_BYTES
        fits = FILE_BYTES if in_file else size
        no_disk = in_file and self._free() < self._on_disk + (1 + IN_TURN) * size
        if fits > self._bytes or not self._transfers or no_disk:
            self._refused[again] = None
            return False
        self._bytes -= fits
        self._on_disk += size if in_file else 0
        self._transfers -= 1
        return True

    def came(self) -> None:
        """A transfer has ended, well or not."""
        self._transfers += 1
        self._tell()

    def give(self, size: int) -> None:
        """A model that was counted is not here any more, or its turn is over."""
        in_file = size >= SPILLED_BYTES
        self._bytes += FILE_BYTES if in_file else size
        self._on_disk -= size if in_file else 0
        self._tell()

    def forget(self, again: Callable[[], None]) -> None:
        """Nobody waits with this `again` any more."""
        self._refused.pop(again, None)

    def _tell(self) -> None:
        refused, self._refused = self._refused, {}
        for again in refused:
            again()
