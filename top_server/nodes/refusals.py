"""Records refused nodes, but only so many in a minute: anybody who reaches the port can ask again and again."""

import time
from collections.abc import Callable

from fedgsp.messages import Failure
from fedgsp.security.access import Caller
from fedgsp.visible import visible
from top_server.nodes.admission import Refusal
from top_server.record.audit import NO_AUDIT, Audit, who
from top_server.record.events.processes import NodeRefused, NodesRefused
from top_server.record.journal import Recorder

#: Refusals that are recorded one by one in a period; the others are only counted.
MOST_RECORDED, PERIOD_S = 10, 60.0
#: Most characters of a refused name: it may be no name of a node.
MOST_OF_NAME = 63


class Refusals:
    """Passes the first refusals of each period to the record, and the number of the others once it is over."""

    def __init__(self, recorder: Recorder, now: Callable[[], float] = time.monotonic, audit: Audit = NO_AUDIT) -> None:
        self._recorder = recorder
        self._audit = audit
        self._now = now
        self._ends = -float("inf")
        self._in_period = 0

    def note(self, node: str, why: Failure | Refusal, caller: Caller) -> None:
        """A node was refused."""
        if self._now() >= self._ends:
            self.close()
            self._ends = self._now() + PERIOD_S
        self._in_period += 1
        if self._in_period <= MOST_RECORDED:
            name = visible(node[:MOST_OF_NAME])[:MOST_OF_NAME]
            reason = visible(str(why))  # it may quote what the node says, or what another one has said
            self._recorder.record(NodeRefused(node=name, reason=reason))
            self._audit.note("refused", node=name, caller=who(caller), reason=reason)

    def close(self) -> None:
        """Records how many refusals were only counted."""
        left_out = self._in_period - MOST_RECORDED
        self._in_period = 0
        if left_out > 0:
            self._recorder.record(NodesRefused(refusals=left_out))
            self._audit.note("refused", nodes=left_out)
