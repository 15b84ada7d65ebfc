"""What a disturbed run is judged by: what it left behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos import leftovers
from fedgsp_node.personal import PERSONAL_MODEL, PersonalState
from top_server import checkpoint

ARRAYS = {"weight": np.zeros(3, np.float32)}
ORIGIN = checkpoint.Origin("run", "ditto", 1, 0)


class KilledError(BaseException):
    """In place of SIGKILL: nobody catches it."""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The record of a run, and what a node keeps; both finished."""
    run_dir, state = tmp_path / "run", tmp_path / "state-n0"
    run_dir.mkdir()
    checkpoint.save(run_dir / "final.safetensors", ARRAYS, ORIGIN)
    PersonalState(state).put_in(0, PERSONAL_MODEL, ARRAYS, 1)
    return run_dir, state


def found(folder: Path) -> list[str]:
    return leftovers.find(folder, folder / "run", "of no process")


def test_what_is_finished_may_stay(places: tuple[Path, Path], tmp_path: Path) -> None:
    assert all(any(place.iterdir()) for place in places)
    assert found(tmp_path) == []


def test_what_a_killed_node_was_writing_is_told(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KilledError

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KilledError):
        PersonalState(places[1]).put_in(1, PERSONAL_MODEL, ARRAYS, 1)
    (left,) = found(tmp_path)
    assert left.startswith("a file: state-n0/")


def test_what_a_killed_top_server_was_writing_is_told(places: tuple[Path, Path], tmp_path: Path) -> None:
    (places[0] / ".writing").mkdir()
    assert found(tmp_path) == ["a file: run/.writing"]
