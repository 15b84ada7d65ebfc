"""The version of the protocol, and limits that both sides of a connection check."""

from __future__ import annotations

PROTOCOL = 24
#: Largest client id. Ids have to fit into int64 arrays.
MOST_CLIENT = 2**63 - 1
#: Most clients of a node. While the top server admits a node, for some tens of milliseconds at most, all others wait.
MOST_CLIENTS_OF_NODE = 20_000
#: Most samples of one client, or of one of its classes. Sums over the million clients of a run then fit into int64.
MOST_SAMPLES = 1 << 40
#: Most bytes of one Echo, which are not split further on their way.
MOST_ECHO_BYTES = 64 << 10
#: Length of a SHA-256 digest.
TASK_DIGEST_BYTES = 32
