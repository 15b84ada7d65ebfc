"""Lines between the top server and the driver: objects of JSON, one a line.

The top server writes, to the standard input of the driver:

- first `{"address", "working_dir", "run"}`, to which `{"tell": "ready"}` or `{"tell": "refused", "what", "remedy"}` is
  the answer;
- `{"do": "place", "worker", "cpus", "gpus", "memory", "marker", "token"}`: finds a machine for a worker;
- `{"do": "begin", "worker", "arguments", "secrets", "folder"}`: starts it there;
- `{"do": "stop", "worker"}`: ends it, or the search for a machine.

When its standard input ends, the driver ends, and with it all actors.

The driver writes, to its standard output, besides these answers:

- `{"tell": "waits", "worker", "missing"}`, again and again while no machine has room;
- `{"tell": "placed", "worker", "host", "folder", "shared"}`;
- `{"tell": "output", "worker", "data"}`, in base64;
- `{"tell": "ended", "worker", "code"}` in the end, without a code if it never began, or
  `{"tell": "lost", "worker", "reason"}` if its actor has died. Then `place` may come again.
"""

import json
from typing import Any

#: More than the longest line: output comes in pieces of 64 KiB.
MOST_BYTES = 1 << 22

Line = dict[str, Any]


def to_bytes(line: Line) -> bytes:
    """A line as it is sent."""
    return json.dumps(line).encode() + b"\n"
