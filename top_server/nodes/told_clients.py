"""How the audit log names the clients of a node that joins: all of them if they are new, and not too many bytes."""

import hashlib
from collections import Counter
from typing import Any

from fedgsp.messages import Hello
from top_server.grouping.request import ranges

#: Bytes of lists of clients that are noted of a node. It may join 30 times a minute, and host others each time.
MOST_BYTES = 4 << 20
#: A list of fewer bytes is always noted: its digest would be as long.
_SHORT = 128


class ToldClients:
    """The clients that were noted, by node."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}  # the digest of the list
        self._bytes: Counter[str] = Counter()

    def fields(self, hello: Hello) -> dict[str, Any]:
        """The list of the clients (`clients`), or else their number, and the SHA-256 of the list."""
        text = ranges(hosted.client for hosted in hello.clients)
        if len(text) < _SHORT:
            return {"clients": text}
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self._last.get(hello.node) == digest or self._bytes[hello.node] + len(text) > MOST_BYTES:
            return {"clients_number": len(hello.clients), "clients_sha256": digest}
        self._bytes[hello.node] += len(text)
        self._last[hello.node] = digest
        return {"clients": text}
