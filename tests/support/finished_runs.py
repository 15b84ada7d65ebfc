"""Directories as runs leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from fedgsp.settings.files import dump, parse
from fedgsp.settings.run import RunConfig
from top_server.record.figures import summarise

BEGAN = "2026-01-01T00:00:00.000Z"


def finished(directory: Path, settings: dict[str, Any], mean: float = 0.5) -> Path:
    """A run of one round, in which two clients train alone and reach the accuracy `mean`."""
    directory.mkdir(parents=True)
    config = parse(RunConfig, tomli_w.dumps(settings), directory)
    (directory / "config.toml").write_text(dump(config), encoding="utf-8")
    history(directory, [row(1, {0: mean, 1: mean})])
    ended(directory)
    return directory


def row(number: int, accuracies: dict[int, float], **others: Any) -> dict[str, Any]:
    """A row of the history: no weights moved, and each client is a group."""
    mean = sum(accuracies.values()) / len(accuracies)
    each = {str(client): accuracy for client, accuracy in accuracies.items()}
    told = {"round": number, "accuracy": mean, "loss": 1.0, "bytes_direct": 0, "bytes_relayed": 0}
    return {**told, "partition": [[client] for client in accuracies], "accuracy_per_client": each, **others}


def ended(directory: Path) -> None:
    """The events of a run from its begin to its end."""
    events = [{"event": "run_started", "directory": str(directory.parent)}, {"event": "run_finished"}]
    lines = [json.dumps({"time": BEGAN, **event}) + "\n" for event in events]
    (directory / "events.jsonl").write_text("".join(lines), encoding="utf-8")


def history(directory: Path, rows: list[dict[str, Any]]) -> None:
    """Writes a history, and the summary that belongs to it."""
    (directory / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if summary := summarise(rows):
        (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
