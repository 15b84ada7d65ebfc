"""Notes that a node takes the place of its own older connection, and warns if another living process has made that.

A node that lost its network connects again, and its older connection may not be known as lost yet. Both are then made
by one process. If another process has made the older one, two processes use the same key.
"""

from collections import Counter

from fedgsp.security.access import Caller
from fedgsp.seldom import is_told
from top_server.record.events.processes import IdentityUsedTwice
from top_server.record.journal import Recorder

#: Why the older connection ends, for the record, and what its process is told.
ANEW = "it has joined anew"
TAKEN = "another process with the same certificate has taken its place"
TOLD_TAKEN = (
    "another process has joined with the certificate of this node and takes its place: if you did not start that"
    " process, tell the owner of the top server that somebody has a copy of the key"
)
_OF_FEDERATION = "revoke it (`top-server revoke {name}`) and invite it anew"
_OF_OWN_CA = "exclude it with a new CA (docs/tls.md)"


class Replacing:
    """Counts the replaced connections of each node. Only names that a certificate has proven get here."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._times: Counter[str] = Counter()

    def note(self, name: str, older: Caller, newer: Caller, enrolled: bool) -> tuple[str, str]:
        """Why the older connection of a node ends: for the record, and for the process that made it.

        Records the first time that another process takes the place of a living one, the tenth, the hundredth, ...:
        two processes can throw each other out without end. `enrolled`: the node can be revoked.
        """
        if older.process == newer.process != "":
            return ANEW, ANEW
        self._times[name] += 1
        if is_told(self._times[name]):
            remedy = (_OF_FEDERATION if enrolled else _OF_OWN_CA).format(name=name)
            self._recorder.record(
                IdentityUsedTwice(
                    node=name,
                    older=older.address,
                    newer=newer.address,
                    times=self._times[name],
                    reason=f"if its owner has started only one of them, somebody has a copy of its key: {remedy}",
                )
            )
        return TAKEN, TOLD_TAKEN
