"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import parse_session_end_info_plugin_data

from fedgsp.errors import ConfigError
from tests.contracts.tracking import BEGAN, about_run, points_of
from top_server.tracking import TensorBoardOptions
from top_server.tracking.base import About, Outcome
from top_server.tracking.tensorboard import TensorBoard


@pytest.fixture
def about(tmp_path: Path) -> About:
    return about_run(tmp_path)


def written(folder: Path) -> Any:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def steps(found: Any, tag: str = "score") -> list[tuple[int, float]]:
    return [(one.step, round(one.value, 3)) for one in found.Scalars(tag)]


def text(found: Any, tag: str) -> str:
    (only,) = found.Tensors(tag)
    return str(only.tensor_proto.string_val[0].decode())


def play(about: About, *rounds: int, to: Path | None = None, end: Outcome | None = None) -> None:
    board = TensorBoard(TensorBoardOptions(to=to))
    assert board.begin(about) == 0
    for number in rounds:
        board.add(points_of(number))
    if end is not None:
        board.end(end)


def test_a_run_has_its_points_settings_and_outcome(about: About) -> None:
    play(about, 1, 2, end=Outcome("failed", BEGAN, "the disk is full"))
    found = written(about.directory / "tensorboard")
    assert steps(found) == [(1, 0.1), (2, 0.2)]
    assert steps(found, "client/2/train_loss") == [(1, 0.2), (2, 0.2)]
    assert found.Scalars("score")[1].wall_time == BEGAN.timestamp() + 2
    assert "| scheme | hcct |" in text(found, "run")
    assert text(found, "outcome") == "failed: the disk is full"
    ended = found.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert parse_session_end_info_plugin_data(ended).status == Status.STATUS_FAILURE


def test_what_would_be_markup_is_shown_as_it_is(about: About) -> None:
    play(about)
    told = text(written(about.directory / "tensorboard"), "settings")
    assert "<i>" not in told
    assert "a&#124;b &#60;i&#62;c" in told


def test_a_run_that_is_resumed_has_no_point_twice(about: About) -> None:
    play(about, 1, 2)
    play(about, 1, 2, 3)
    assert steps(written(about.directory / "tensorboard")) == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_several_runs_lie_side_by_side_and_other_files_stay(about: About, tmp_path: Path) -> None:
    other = dataclasses.replace(about, run="other", directory=tmp_path / "other")
    (tmp_path / "board" / "a run").mkdir(parents=True)
    (tmp_path / "board" / "a run" / "events.out.tfevents.1.mine").write_bytes(b"")
    play(about, 1, to=tmp_path / "board")
    play(other, 1, 2, to=tmp_path / "board")
    play(other, 1, 2, to=tmp_path / "board")
    assert steps(written(tmp_path / "board" / "a run")) == [(1, 0.1)]
    assert steps(written(tmp_path / "board" / "other")) == [(1, 0.1), (2, 0.2)]
    assert (tmp_path / "board" / "a run" / "events.out.tfevents.1.mine").exists()


def test_runs_whose_directories_have_the_same_name_keep_their_records(about: About, tmp_path: Path) -> None:
    board, other = tmp_path / "board", dataclasses.replace(about, run="other", directory=tmp_path / "x" / "a run")
    play(about, 1, to=board)
    for _ in range(2):  # begun, and resumed
        play(other, 1, 2, to=board)
    play(about, 1, 2, 3, to=board)
    assert sorted(path.name for path in board.iterdir()) == ["a run", "a run-other"]
    assert steps(written(board / "a run")) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert steps(written(board / "a run-other")) == [(1, 0.1), (2, 0.2)]


def test_a_folder_that_is_a_link_is_refused(about: About, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    about.directory.mkdir(parents=True, exist_ok=True)
    (about.directory / "tensorboard").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"tensorboard is a link; remove it"):
        play(about, 1)
    assert list(elsewhere.iterdir()) == []


def test_a_file_that_is_a_link_is_replaced_and_not_followed(about: About, tmp_path: Path) -> None:
    folder, keys = about.directory / "tensorboard", tmp_path / "authorized_keys"
    keys.write_text("mine\n")
    play(about, 1)
    (file,) = folder.iterdir()
    file.unlink()
    file.symlink_to(keys)
    play(about, 1)
    assert steps(written(folder)) == [(1, 0.1)]
    assert not file.is_symlink()
    assert keys.read_text() == "mine\n"


def test_a_file_that_becomes_a_link_is_not_written(about: About, tmp_path: Path) -> None:
    board, keys = TensorBoard(TensorBoardOptions()), tmp_path / "authorized_keys"
    keys.write_text("mine\n")
    board.begin(about)
    (file,) = (about.directory / "tensorboard").iterdir()
    file.unlink()
    file.symlink_to(keys)
    with pytest.raises(OSError, match=r"symbolic links"):
        board.add(points_of(1))
    assert keys.read_text() == "mine\n"


def test_a_full_disk_leaves_no_half_of_a_round(about: About) -> None:
    board = TensorBoard(TensorBoardOptions())
    board.begin(about)
    board.add(points_of(1))
    (file,) = (about.directory / "tensorboard").iterdir()
    size, (soft, hard) = file.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))  # the system writes 20 bytes more, then refuses
    try:
        with pytest.raises(OSError, match="File too large"):
            board.add(points_of(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.stat().st_size == size
    board.add(points_of(2))
    assert steps(written(file.parent)) == [(1, 0.1), (2, 0.2)]
