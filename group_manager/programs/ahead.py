"""Models of members on other machines, on their way here before it is their turn.

Programs take models in the order of the members. If each model were asked for only in its turn, one site would send at
a time, and the links of all other sites would be idle. So every site sends as soon as its model is made, one model
after the other. The manager has memory for a few models that come before their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from fedgsp.messages import Failure, Member
from fedgsp.weights import WeightsError
from group_manager.group import Group
from group_manager.sessions import PendingOrder


@dataclass(slots=True, eq=False)
class _Entry:
    """A member's model that was not taken yet."""

    model_id: str
    node: str
    #: The order that makes it; None: it is made.
    pending: PendingOrder | None
    #: Brings the model here, if that has begun.
    coming: asyncio.Task[None] | None = None

    @property
    def is_made(self) -> bool:
        if self.pending is None:
            return True
        outcome = self.pending.outcome
        return outcome.done() and not outcome.cancelled() and not isinstance(outcome.result(), Failure)


class Ahead:
    """Decides which models come before their turn.

    Nothing waits for them here: whoever needs a model asks for it, and gets the one that is on its way.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._size = group.request.max_model_bytes
        self._entries: dict[str, _Entry] = {}  # in the order of the members

    def expect(self, member: Member, model_id: str, pending: PendingOrder | None) -> None:
        """A member makes a model by this order, or has it. If it is on another machine, its model is to come."""
        if self._group.members.near(member.node):
            return
        self._entries[model_id] = _Entry(model_id, member.node, pending)
        if pending is None:
            self._look()
        else:
            pending.outcome.add_done_callback(lambda _: self._look())

    def over(self, model_id: str) -> None:
        """The model of a member was taken, or is not wanted any more."""
        entry = self._entries.pop(model_id, None)
        if entry is not None:
            self._end(entry)
            self._look()

    def close(self) -> None:
        """No model is wanted any more."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            self._end(entry)

    def _look(self) -> None:
        """Lets models come, as far as there is memory: in the order of the members, and one at a time of each node."""
        busy = {entry.node for entry in self._entries.values() if entry.coming is not None and not entry.coming.done()}
        for entry in self._entries.values():
            if entry.coming is None and entry.node not in busy and entry.is_made:
                if not self._group.models.room_ahead.take(self._size):
                    return
                busy.add(entry.node)
                entry.coming = asyncio.create_task(self._bring(entry.model_id), name=f"ahead {entry.model_id}")
                entry.coming.add_done_callback(lambda _: self._look())

    async def _bring(self, model_id: str) -> None:
        with contextlib.suppress(WeightsError):  # in its turn, it is asked for again, and the failure is told
            await self._group.models.wanted(model_id)

    def _end(self, entry: _Entry) -> None:
        if entry.coming is not None:
            entry.coming.cancel()
            self._group.models.room_ahead.give(self._size)
