"""Makes docs/events.md from the classes of events; with --check, only says whether the page is in step."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from pathlib import Path

from top_server.record.events import SECTIONS
from top_server.record.events.base import Event

PAGE = Path(__file__).resolve().parents[1] / "docs" / "events.md"
HEAD = """# Events

*This page is generated from `top_server/record/events/` by `make pages`.*

`RUN_DIR/events.jsonl` holds every event of a run, one JSON object on each line. `top-server --json` prints the same
lines to stdout as they happen; lines are left out only if the reader of stdout is too slow. Each line has `time`
(ISO 8601, UTC), `event` (the kind), and the fields below. Later versions may add kinds and fields: a program should
ignore those that it does not know. NaN and infinity are `null`.

```
{"time": "2026-11-22T21:32:03.054Z", "event": "hop_finished", "round": 1, "group": 0, "program": "relay",
 "position": 0, "members": 3, "client": 1, "loss": 0.958, "seconds": 0.242, "samples": 366, "update_length": 0.0,
 "bytes": 40104, "model": "b687fefa/1/0/relay/0.0", "node": "node-0", "via": "top_server"}
```

- `client` and `node` are a client's number and a node's name. `reason` is text for people. `seconds` is a duration.
- `round` counts from 1. It is 0 while the initial model is made. The top server also asks clients questions before a
  round and evaluates them after it: events about that have the number of the round, group 0 as a rule, and another
  `program` (`describe`, `evaluate`, ...).
- A resumed run continues the same file. The events of an interrupted round stay in the file, and the events of what is
  played again follow.
- The run that `--local-run` plays first has an `events.jsonl` in its own directory. Events of nodes that join or leave
  meanwhile, and of its group managers, are in the file of the main run, which is compared with it.
"""


def page() -> str:
    """The text of the page."""
    lines = [HEAD]
    for title, events in SECTIONS.items():
        lines += [f"## {title}", "", "| event | when | fields |", "|---|---|---|"]
        lines += [_row(event) for event in events]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(event: type[Event]) -> str:
    when = " ".join((inspect.getdoc(event) or "").split()).rstrip(".")
    fields = []
    for field in dataclasses.fields(event):
        text = field.metadata.get("text", "")
        fields.append(f"`{field.name}` ({text})" if text else f"`{field.name}`")
    return f"| `{event.kind()}` | {when} | {', '.join(fields)} |"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page is not in step")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.name} is not what the classes of events say: run `make pages`")


if __name__ == "__main__":
    main()
