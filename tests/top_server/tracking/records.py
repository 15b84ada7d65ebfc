"""Records of runs, written event by event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from top_server.record.directory import RunDirectory

TIME = "2026-01-01T00:00:00.000Z"
BEGUN = {"event": "run_started", "run": "abcd1234", "round": 0, "scheme": "hcct", "rounds": 9, "commit": "f" * 40}


def record(folder: Path, *events: dict[str, Any], **settings: Any) -> RunDirectory:
    """A run directory with these events after its begin."""
    directory = RunDirectory(folder / "run")
    directory.path.mkdir(parents=True)
    directory.config.write_text(dump(RunConfig(scheme="hcct", **settings)))
    more(directory, BEGUN, *events)
    return directory


def more(directory: RunDirectory, *events: dict[str, Any]) -> None:
    """Appends events."""
    with directory.events.open("a") as file:
        file.writelines(json.dumps({"time": TIME, **one}) + "\n" for one in events)


def finished(number: int, accuracy: float = 0.5) -> dict[str, Any]:
    """The end of a round."""
    return {"event": "round_finished", "round": number, "accuracy": accuracy}
