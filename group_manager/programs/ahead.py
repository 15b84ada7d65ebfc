"""Models of members on other machines, on their way here before it is their turn.

Programs take models in the order of the members. If each model were asked for only in its turn, one site would send at
a time, and the links of all other sites would be idle. So every site sends as soon as its model is made, one model
after the other. Nodes that come from one host share a link, and count as one site. Memory and disk bound how many
models come before their turn (`group_manager.room_ahead`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from fedgsp.messages import Failure, Member
from fedgsp.to_the_end import looked_at
from group_manager.group import Group
from group_manager.sessions import PendingOrder

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """A member's model that was not taken yet."""

    model_id: str
    #: Nodes with the same link are asked one after the other.
    link: str
    #: The order that makes it; None: it is made.
    pending: PendingOrder | None
    #: Brings the model here, if that has begun.
    coming: asyncio.Future[str] | None = None
    #: Whether it counts in the room.
    counted: bool = False

    @property
    def is_made(self) -> bool:
        if self.pending is None:
            return True
        outcome = self.pending.outcome
        return outcome.done() and not outcome.cancelled() and not isinstance(outcome.result(), Failure)


class Ahead:
    """Decides which models come before their turn.

    Nothing waits for them here: whoever needs a model asks for it, and gets the one that is on its way. A model that
    has failed to come by then is asked for again.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._room = group.models.room_ahead
        self._size = group.request.max_model_bytes
        self._entries: dict[str, _Entry] = {}  # in the order of the members
        self._looks = False

    def expect(self, member: Member, model_id: str, pending: PendingOrder | None) -> None:
        """A member makes a model by this order, or has it. If it is on another machine, its model is to come."""
        if model_id in self._entries or self._group.members.near(member.node):
            return
        self._entries[model_id] = _Entry(model_id, self._group.members.link(member.node), pending)
        if pending is None:
            self._look_soon()
        else:
            pending.outcome.add_done_callback(lambda _: self._look_soon())

    def over(self, model_id: str) -> None:
        """The model of a member was taken, or is not wanted any more."""
        entry = self._entries.pop(model_id, None)
        if entry is not None:
            self._end(entry)
            self._look_soon()

    def close(self) -> None:
        """No model is wanted any more."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            self._end(entry)
        self._room.forget(self._look_soon)

    def _look_soon(self) -> None:
        """Looks once for all that happens in this turn of the event loop."""
        if self._entries and not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Lets models come, as far as there is room: in the order of the members, and one at a time by each link."""
        self._looks = False
        busy = {entry.link for entry in self._entries.values() if entry.coming is not None and not entry.coming.done()}
        for entry in self._entries.values():
            if entry.coming is None and entry.link not in busy and entry.is_made:
                if not self._room.take(self._size, self._look_soon):
                    return
                busy.add(entry.link)
                entry.counted = True
                entry.coming = looked_at(self._group.models.wanted(entry.model_id))
                # Not in the task itself: one that is cancelled before it begins does nothing.
                entry.coming.add_done_callback(partial(self._came, entry))

    def _came(self, entry: _Entry, coming: asyncio.Future[str]) -> None:
        self._room.came()
        if not coming.cancelled() and not self._group.models.has(entry.model_id):
            logger.info("model %s did not come before its turn", entry.model_id)
            self._give(entry)
        self._look_soon()

    def _end(self, entry: _Entry) -> None:
        if entry.coming is not None:
            entry.coming.cancel()
        self._give(entry)

    def _give(self, entry: _Entry) -> None:
        if entry.counted:
            entry.counted = False
            self._room.give(self._size)
