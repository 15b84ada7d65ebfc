"""In place of the driver of Ray: speaks its lines, without a cluster. The address says what happens to workers."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

Line = dict[str, Any]
PLACED = {"tell": "placed", "host": "10.0.0.7", "folder": "/nowhere/w", "shared": False}
OUTPUT = {"tell": "output", "data": base64.b64encode(b"hello\n").decode()}
ENDED = {"tell": "ended", "code": None}

#: Address -> what is done -> what is told.
STORIES: dict[str, dict[str, list[Line]]] = {
    "fine": {"place": [PLACED], "begin": [OUTPUT], "stop": [ENDED]},
    "shared": {"place": [PLACED | {"shared": True}], "begin": [{"tell": "ended", "code": 3}]},
    "full": {"place": [{"tell": "waits", "missing": "the cluster has no machine"}], "stop": [ENDED]},
    "shaky": {"place": [PLACED], "begin": [OUTPUT, {"tell": "lost", "reason": "its node has died"}]},
    "bare": {"place": [{"tell": "lost", "reason": "ModuleNotFoundError: No module named 'top_server'"}]},
    "fails": {"place": [PLACED], "begin": [OUTPUT, {"tell": "ended", "code": 3}]},
    "ends": {"place": [PLACED]},
}


def lines() -> Iterator[Line]:
    for text in sys.stdin:
        yield json.loads(text)


def say(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    asked = lines()
    address = next(asked)["address"]
    if address == "nowhere":
        say({"tell": "refused", "what": "there is no Ray cluster", "remedy": "start one"})
        return
    if address == "broken":
        sys.exit("it broke")
    say({"tell": "ready"})
    for line in asked:
        sys.stderr.write(f"{json.dumps(line)}\n")
        sys.stderr.flush()
        for answer in STORIES[address].get(line["do"], []):
            say({**answer, "worker": line["worker"]})
        if address == "ends":
            sys.exit(9)


if __name__ == "__main__":
    main()
