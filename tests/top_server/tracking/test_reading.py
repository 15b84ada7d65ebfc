"""The record of a run as trackers read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedgsp
from fedgsp.errors import DataError
from tests.top_server.tracking.records import BEGUN, TIME, finished, more, record
from top_server.record.directory import RunDirectory
from top_server.tracking.reading import Reader


def rounds(reader: Reader) -> list[tuple[int, float]]:
    return [(points.round, points.values["accuracy"]) for points in reader.read()]


def test_each_round_is_read_once_also_while_the_record_grows(tmp_path: Path) -> None:
    directory = record(tmp_path, finished(1, 0.25))
    reader = Reader(directory)
    assert rounds(reader) == [(1, 0.25)]
    with directory.events.open("a") as file:
        file.write('{"event": "round_fini')
    assert rounds(reader) == []
    with directory.events.open("a") as file:
        file.write('shed", "time": "2026-01-01T00:00:00Z", "round": 2, "accuracy": 0.5}\n')
    more(directory, {"event": "listening", "address": "here"}, {"event": "run_finished"})
    assert rounds(reader) == [(2, 0.5)]
    assert reader.outcome.kind == "finished"


def test_a_round_that_was_played_again_counts_as_it_was_played_last(tmp_path: Path) -> None:
    resumed = {**BEGUN, "event": "run_resumed", "round": 1}
    stopped = {"event": "run_stopped", "code": 143}
    directory = record(tmp_path, finished(1, 0.1), finished(2, 0.2), stopped, resumed, finished(2, 0.25), finished(3))
    reader = Reader(directory)
    assert rounds(reader) == [(1, 0.1), (2, 0.25), (3, 0.5)]
    assert reader.outcome.kind == "open"


def test_a_finished_round_that_is_played_again_waits_for_its_new_end(tmp_path: Path) -> None:
    resumed = {**BEGUN, "event": "run_resumed", "round": 1}
    directory = record(tmp_path, finished(1, 0.1), finished(2, 0.2), resumed)
    reader = Reader(directory)
    assert rounds(reader) == [(1, 0.1)]
    more(directory, finished(2, 0.25))
    assert rounds(reader) == [(2, 0.25)]


def test_a_run_is_described_by_what_it_trains_and_not_by_where(tmp_path: Path) -> None:
    about = Reader(
        record(tmp_path, task_option={"sites": "4"}, local_nodes=2, clients=4, track=("tensorboard",))
    ).about
    assert about.run == "abcd1234"
    assert about.tags == {
        **{"scheme": "hcct", "seed": "0", "task": "digits", "version": fedgsp.__version__},
        "commit": "f" * 40,
    }
    assert about.parameters["task_option.sites"] == "4"
    assert not {"track", "listen", "local_nodes", "run_dir", "metrics"} & about.parameters.keys()


@pytest.mark.parametrize("run", ["", "x/../link", "..", "a\nb", "x" * 65, "'"])
def test_an_id_that_would_be_a_path_or_a_filter_is_refused(run: str, tmp_path: Path) -> None:
    directory = record(tmp_path)
    directory.events.write_text(json.dumps({"time": TIME, **BEGUN, "run": run}) + "\n")
    with pytest.raises(DataError, match=r"names no possible id of a run; restore the file"):
        Reader(directory)


def test_a_record_without_a_run_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Reader(RunDirectory(tmp_path))
    (tmp_path / "events.jsonl").write_text('{"event": "listening"}\n')
    with pytest.raises(DataError, match="holds no run that has begun"):
        Reader(RunDirectory(tmp_path))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"event": "round_finished", "round": \n', "is not JSON"),
        ('{"event": "round_finished", "time": "2026-01-01T00:00:00Z"}\n', "damaged event"),
        ('{"event": "hop_finished", "time": "2026-01-01T00:00:00Z", "client": "x"}\n', "damaged event"),
        ('{"event": "run_finished", "time": "yesterday"}\n', "damaged event"),
    ],
)
def test_a_damaged_record_is_refused_with_what_is_wrong(tmp_path: Path, line: str, told: str) -> None:
    directory = record(tmp_path)
    with directory.events.open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=told):
        list(Reader(directory).read())
