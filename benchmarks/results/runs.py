"""What is read of a finished run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.golden.digests import tensor_digest
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

Line = dict[str, Any]


def finished(path: Path) -> bool:
    """Whether the run in a directory has come to its end; false if there is no run."""
    events = RunDirectory(path).events
    return events.is_file() and any(event.get("event") == "run_finished" for event in read_lines(events))


def final_models(directory: RunDirectory) -> list[Path]:
    """The files of the models after the last round, by name."""
    return sorted(directory.models.glob("final*.safetensors"))


def digests(directory: RunDirectory) -> dict[str, str]:
    """SHA-256 of the tensors of each final model, by the name of its file."""
    return {path.stem: tensor_digest(path) for path in final_models(directory)}


def samples(events: list[Line]) -> dict[int, int]:
    """Training samples of each client that has trained."""
    return {event["client"]: event["samples"] for event in events if event.get("event") == "hop_finished"}
