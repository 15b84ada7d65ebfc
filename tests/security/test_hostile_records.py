"""Files in the directory of a run that hold its readers up, or that never end: each is refused by its name."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from fedgsp.errors import DataError, UserError
from fedgsp.files import MOST_LINE, MOST_OF_SETTINGS
from fedgsp_node.finished import record as of_node
from tests.top_server.tracking.records import finished, record
from top_server.pictures.run import draw
from top_server.pictures.shown import shown
from top_server.record.directory import RunDirectory, digest_of_config, is_worth_keeping
from top_server.record.history import read_lines
from top_server.recorded import recorded
from top_server.report.charts import charts_of
from top_server.report.facts import facts
from top_server.report.story import Story
from top_server.tracking.reading import Reader
from top_server.web import pictures
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


def on_the_page(directory: RunDirectory) -> None:
    story = Story(directory, orjson.loads)
    story.read()
    pictures.described(story)
    for picture in pictures.PICTURES.values():
        picture(story)


#: All that draw a run.
DRAWING: dict[str, Read] = {
    "picture": lambda directory: draw(directory.path, directory.path / "run.png"),
    "report": lambda directory: list(charts_of(directory.path, "a")),
    "web": on_the_page,
}


def rows(directory: RunDirectory, *partitions: tuple[int, list[list[int]]]) -> None:
    told = [{"round": number, "accuracy": 0.5, "loss": 1.0, "partition": groups} for number, groups in partitions]
    directory.history.write_text("".join(json.dumps(row) + "\n" for row in told))


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize(
    "partitions",
    [
        pytest.param([(1, [[0, 1]]), (1_000_000, [[*range(100)]])], id="few rounds with large numbers"),
        pytest.param([(1, [[0] * 6_000, [1]])], id="one client again and again"),
    ],
)
def test_a_record_of_some_kilobytes_fills_no_memory(
    name: str, partitions: list[tuple[int, list[list[int]]]], tmp_path: Path
) -> None:
    directory = run(tmp_path)
    rows(directory, (1, [[0, 1]]))
    DRAWING[name](directory)  # what is loaded once does not count
    rows(directory, *partitions)
    tracemalloc.start()
    try:
        DRAWING[name](directory)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize("parse", [orjson.loads, json.loads], ids=["web", "report"])
@pytest.mark.parametrize(
    "row",
    [
        {"round": "1"},
        {"round": 4_000_000_000},
        {"round": 1, "partition": [[0], 1]},
        {"round": 1, "partition": [["a"]]},
        {"round": 1, "score_per_client": {"9" * 5_000: 0.5}},
    ],
)
def test_a_row_of_wrong_types_is_named_by_its_byte(row: dict[str, Any], parse: Any, tmp_path: Path) -> None:
    directory = run(tmp_path)
    directory.history.write_text('{"round": 0}\n' + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"history\.jsonl, byte 13: \w+ is .*restore the file"):
        Story(directory, parse).read()


@pytest.mark.parametrize("event", [{"round": "1", "teams": [[0]]}, {"round": 1, "teams": [0]}])
def test_an_event_of_wrong_types_is_named_by_its_byte(event: dict[str, Any], tmp_path: Path) -> None:
    directory = run(tmp_path)
    end = directory.events.stat().st_size
    with directory.events.open("a") as events:
        events.write(json.dumps({"event": "round_started", **event}) + "\n")
    with pytest.raises(DataError, match=rf"events\.jsonl, byte {end}: \w+ is .*restore the file"):
        Story(directory).read()


def test_a_value_of_a_thousand_levels_is_named_as_any_other(tmp_path: Path) -> None:
    directory = run(tmp_path)
    directory.history.write_text('{"round": 1, "metrics": ' + "[" * 1_000 + "]" * 1_000 + "}\n")
    with pytest.raises(DataError, match=r"metrics is \[\["):
        Story(directory, orjson.loads).read()
