"""The orders that a node carries out, for all its managers: which of them nobody waits for any more."""

import asyncio

from fedgsp.messages import OrderKey


def is_superseded(older: OrderKey, newer: OrderKey) -> bool:
    """Whether an order belongs to an earlier call of the same group in the same round."""
    same = (older.run, older.round, older.group) == (newer.run, newer.round, newer.group)
    return same and older.serial < newer.serial


class Running:
    """The running orders of a node.

    Orders outlast a connection to their manager, because the manager may come back. But the top server gives the group
    of a lost manager to another one, and calls one manager at a time. When the other manager asks for something, the
    orders of the lost one end: they would only hold up its own.
    """

    def __init__(self) -> None:
        self._tasks: dict[OrderKey, asyncio.Task[None]] = {}

    def begin(self, key: OrderKey, task: asyncio.Task[None]) -> None:
        """An order is being carried out."""
        for older, running in self._tasks.items():
            if is_superseded(older, key):
                running.cancel()
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
