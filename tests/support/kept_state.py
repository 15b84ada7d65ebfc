"""What clients keep to themselves, as their trainings leave it."""

import errno
from pathlib import Path

from fedgsp_node.kept.personal_state import Arrays, PersonalState


def opened(directory: Path | None, run_id: str = "run") -> PersonalState:
    """What clients keep in a run, as a process that begins finds it."""
    state = PersonalState(directory)
    state.open(run_id)
    return state


def keep(state: PersonalState, client: int, purpose: str, arrays: Arrays, round_number: int) -> None:
    """Keep what a training of a round has left, which has a receipt."""
    state.prepare(client, {purpose: arrays}, round_number, f"made/{round_number}")
    state.settle(client, f"made/{round_number}")


def disk_fails(*_: object) -> None:
    """In place of a call that writes to a disk."""
    raise OSError(errno.EIO, "Input/output error")
