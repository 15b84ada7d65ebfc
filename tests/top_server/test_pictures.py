from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgsp.errors import ConfigError, DataError
from top_server.pictures import draw, partition_image

ROWS = [
    {"round": 1, "accuracy": 0.5, "loss": 1.0, "partition": [[0], [1]], "accuracy_per_client": {"0": 0.4, "1": 0.6}},
    {"round": 2, "accuracy": None, "loss": None, "partition": [[0, 1]]},
    {"round": 3, "accuracy": 0.7, "loss": 0.8, "partition": [[0, 1], [2]], "accuracy_per_client": {"0": 0.7}},
]


def run_directory(path: Path, rows: list[dict[str, object]]) -> Path:
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_group_has_the_number_of_its_smallest_member() -> None:
    clients, image = partition_image([[[0], [1, 7]], None, [[7, 0]]])
    assert clients == [0, 1, 7]
    np.testing.assert_array_equal(image, [[0, np.nan, 0], [1, np.nan, np.nan], [1, np.nan, 0]])


@pytest.mark.parametrize("rows", [ROWS, [{"round": 1, "accuracy": 0.1, "loss": 2.0}]], ids=["groups", "one model"])
def test_a_run_is_drawn_into_one_picture(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    draw(run_directory(tmp_path, rows), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_finished_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished round"):
        draw(run_directory(tmp_path, []), tmp_path / "run.png")


@pytest.mark.parametrize("name", ["no/folder/run.png", "run.colour"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--out .* cannot be written"):
        draw(run_directory(tmp_path, ROWS), tmp_path / name)


def test_without_matplotlib_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"install the extra: pip install 'fedgsp\[plots\]'"):
        draw(run_directory(tmp_path, ROWS), tmp_path / "run.png")
