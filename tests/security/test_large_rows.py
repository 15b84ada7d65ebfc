"""A row of the history may have megabytes of figures of single clients: whoever reads all rows keeps few of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fedgsp.errors import DataError
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp_runs import Run
from fedgsp_runs.result import warned
from fedgsp_runs.sweeping import Sweep
from tests.support.little_memory import allocating_less_than
from tests.top_server.resume.test_find import BEGIN, recorded, started, whole
from top_server.best import Best
from top_server.pictures.shown import last_partition, shown, started_teams
from top_server.record.directory import RunDirectory
from top_server.record.history import last_line
from top_server.record.journal import Journal
from top_server.record.scores import scores_of
from top_server.record.summary import write_summary
from top_server.recorded import recorded as said
from top_server.report.story import Story
from top_server.resume import find as resuming

ROUNDS, CLIENTS, METRICS = 30, 200, 8
#: Bytes, of a few rows as objects. All rows have more than that as text, and many times more as objects.
LITTLE = 2 << 20


def row(number: int) -> dict[str, Any]:
    """What one node may report with many clients, or a simulation."""
    by_client = {str(client): number + client / 7 for client in range(CLIENTS)}
    found = {
        "accuracy": None,
        "loss": 0.5,
        "scored_by": "-mae",
        "score": float(-number),
        "score_per_client": by_client,
        "accuracy_per_client": by_client,
        "metrics": {"m0": 0.5},
        "metrics_per_client": {f"m{metric}": by_client for metric in range(METRICS)},
    }
    groups = [[*range(1_000, 1_000 + CLIENTS)]]
    validation = {**found, "behind_score": by_client}
    return {"round": number, "clients_evaluated": 1, "partition": groups, **found, "validation": validation}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    made = recorded(tmp_path_factory.mktemp("run"), BEGIN)
    made.config.write_text(dump(RunConfig(rounds=ROUNDS, clients=CLIENTS)))
    with made.history.open("w") as history, made.events.open("a") as events:
        for number in range(1, ROUNDS + 1):
            line = row(number)
            history.write(json.dumps(line) + "\n")
            for event in (started(*line["partition"], number=number), {"event": "round_finished", **line}):
                events.write(json.dumps(whole(**event)) + "\n")
    assert made.history.stat().st_size > LITTLE
    return made


def end(directory: RunDirectory) -> None:
    with Journal(RunDirectory(directory.path)) as journal:
        write_summary(directory, journal, {}, Best(0.5, 2))


def resume(directory: RunDirectory) -> None:
    with pytest.raises(DataError, match="state/ is gone"):
        resuming.find(directory)


#: All that read the whole history.
READERS: dict[str, Callable[[RunDirectory], object]] = {
    "the last row of a run": lambda directory: last_line(directory.history),
    "resume": resume,
    "audit": said,
    "the report and the web page": lambda directory: Story(directory).read(),
    "pictures": lambda directory: shown(directory.path),
    "Run.score": lambda directory: Run(directory.path).score,
    "Run": lambda directory: repr(Run(directory.path)),
    "Run.skipped": lambda directory: Run(directory.path).skipped,
    "a run without progress": lambda directory: warned(Run(directory.path), False),
    "sweep": lambda directory: Sweep({"a": {0: Run(directory.path)}}).table,
    "end": end,
}


@pytest.mark.parametrize("name", READERS)
def test_readers_of_all_rows_keep_few_figures_of_single_clients(
    name: str, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("top_server.report.story._BLOCK", 1 << 16)
    monkeypatch.setattr("top_server.pictures.shown.MOST_CURVES", 10)
    READERS[name](directory)  # what is loaded once does not count
    with allocating_less_than(LITTLE):
        READERS[name](directory)


def test_what_pictures_and_reports_show_is_kept(directory: RunDirectory) -> None:
    story, found = Story(directory), shown(directory.path)
    story.read()
    for rows in (story.rows, found.rows):
        assert [one["metrics"] for one in rows] == [{"m0": 0.5}] * ROUNDS
        assert [scores_of(one) for one in rows] == [{}] * (ROUNDS - 1) + [scores_of(row(ROUNDS))]
        assert last_partition(rows) == row(1)["partition"]
    assert started_teams(story.events) == {number: row(1)["partition"] for number in range(1, ROUNDS + 1)}
    assert found.curves.clients == len(found.curves.of) == CLIENTS
    assert found.curves.of[7] == {number: scores_of(row(number))[7] for number in range(1, ROUNDS + 1)}


def test_of_very_many_clients_some_have_a_curve(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("top_server.pictures.shown.MOST_CURVES", 3)
    found = shown(directory.path).curves
    assert (found.clients, list(found.of)) == (CLIENTS, [0, 100, 199])


def test_the_table_of_a_run_in_python_lacks_metrics_of_single_clients(directory: RunDirectory) -> None:
    run = Run(directory.path)
    assert "metrics_per_client" in run.rows[0]
    assert "metrics_per_client" not in run.history
    assert run.history.loc[2, "score_per_client"] == row(2)["score_per_client"]
    assert "metrics_per_client" not in run.history.loc[2, "validation"]
