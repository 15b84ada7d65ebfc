"""Pure decisions about nodes that are away: their connection has ended, and they may come back.

A connection ends when its node dies, but also when its link is cut for a moment, or when one of both processes was
frozen and finds its own questions unanswered. So a node gets a little time to come back before it counts as gone.
A node that is gone may come back, too: its orders still count as long as the group waits for other members.
"""

from dataclasses import dataclass

#: While others work, the wait for a node that is gone is thought over after so many seconds.
LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Absence:
    """The absence of a node: how long it has lasted, and how long a node may take to come back, both in seconds."""

    seconds: float
    return_s: float

    @property
    def is_gone(self) -> bool:
        """Whether the node counts as gone: its peers do not wait for it any more."""
        return self.seconds >= self.return_s

    def wait_s(self, others_work: bool) -> float:
        """How long to wait for an order of this node before the next look, in seconds; 0: not any more.

        `others_work`: the group waits for other members anyway, so that this wait costs nothing.
        """
        if others_work:
            return LOOK_AGAIN_S
        return max(0.0, self.return_s - self.seconds)
