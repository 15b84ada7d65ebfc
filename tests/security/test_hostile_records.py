"""Files in the directory of a run that hold its readers up, or that never end: each is refused by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgsp.errors import DataError, UserError
from fedgsp.files import MOST_LINE, MOST_OF_SETTINGS
from fedgsp_node.finished import record as of_node
from tests.top_server.tracking.records import finished, record
from top_server.pictures.shown import shown
from top_server.record.directory import RunDirectory, digest_of_config, is_worth_keeping
from top_server.record.history import read_lines
from top_server.recorded import recorded
from top_server.report.facts import facts
from top_server.report.story import Story
from top_server.tracking.reading import Reader
from top_server.web.runs import glance

Read = Callable[[RunDirectory], object]
#: All that read the events of a run from their begin.
READERS: dict[str, Read] = {
    "the report and the web page": lambda directory: Story(directory).read(),
    "trackers": lambda directory: list(Reader(directory).read()),
    "fedgsp-node export": lambda directory: of_node.read(directory.path),
    "Run in Python": lambda directory: read_lines(directory.events),
    "audit": recorded,
}


def run(folder: Path) -> RunDirectory:
    directory = record(folder, finished(1))
    directory.history.touch()
    return directory


@pytest.mark.parametrize("name", READERS)
def test_a_line_without_end_is_refused_before_it_fills_the_memory(name: str, tmp_path: Path) -> None:
    directory = run(tmp_path)
    os.truncate(directory.events, directory.events.stat().st_size + MOST_LINE)
    with pytest.raises(DataError, match=r"events\.jsonl.*longer than any that is written"):
        READERS[name](directory)


@pytest.mark.parametrize("name", READERS)
def test_nobody_waits_for_the_writer_of_a_pipe_in_place_of_the_events(name: str, tmp_path: Path) -> None:
    directory = run(tmp_path)
    directory.events.unlink()
    os.mkfifo(directory.events)
    with pytest.raises(UserError, match=r"not a regular file|holds no run"):
        READERS[name](directory)


def test_settings_that_are_too_many_are_not_read_into_memory(tmp_path: Path) -> None:
    directory = run(tmp_path)
    os.truncate(directory.config, MOST_OF_SETTINGS + 1)
    for read in (recorded, lambda directory: facts(directory.path)):
        with pytest.raises(DataError, match=f"config.toml cannot be read.*more than {MOST_OF_SETTINGS:,} bytes"):
            read(directory)
    with pytest.raises(OSError, match=f"more than {MOST_OF_SETTINGS:,} bytes"):
        digest_of_config(directory)
    assert f"more than {MOST_OF_SETTINGS:,} bytes" in glance("run", directory).title


def test_a_pipe_in_place_of_a_log_holds_up_no_end(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.config.touch()
    directory.history.touch()
    directory.models.mkdir()
    directory.events.write_text('{"event": "listening"}\n')
    directory.logs.mkdir()
    os.mkfifo(directory.logs / "node-0.log")
    (directory.logs / "node-1.log").mkdir()
    assert not is_worth_keeping(directory)
    (directory.logs / "node-2.log").write_text("line\n" * 6)
    assert is_worth_keeping(directory)


@pytest.mark.parametrize("row", ['"loss": 1.7e308', '"metrics": {"auc": -1e200}', '"score_per_client": {"1": 1e999}'])
def test_a_figure_that_cannot_be_drawn_is_a_fault_of_the_record(row: str, tmp_path: Path) -> None:
    directory = run(tmp_path)
    directory.history.write_text(f'{{"round": 1, "accuracy": 0.5, {row}}}\n')
    with pytest.raises(DataError, match=r"history\.jsonl, line 1: "):
        shown(directory.path)
