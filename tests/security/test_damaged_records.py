"""A record with values of other types than they should be, or too large ones, is named as damaged by its readers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError, DataError
from fedgsp.settings.files import parse
from fedgsp.settings.run import RunConfig
from fedgsp_runs import Run, Sweep
from fedgsp_runs.result import warned
from tests.support.finished_runs import ended, finished, history, row
from tests.support.web import client
from top_server.baseline import local_run
from top_server.record.directory import RunDirectory
from top_server.report.page import write
from top_server.tracking.reading import Reader
from top_server.web.runs import Runs, glance

#: Values that no row has.
ODD: list[Any] = [True, -1, 10**30, 1.5, 1e308, "x", [], [1], ["a"], {"a": 1}, {"1": "x"}, [[1]]]
ROW = row(1, {0: 0.5, 1: 0.5}, seconds=1.0, clients_skipped=1, metrics={"auc": 0.5}, scored_by="auc", score=0.5)


def told(run: Run) -> None:
    """What `run` warns of."""
    with warnings.catch_warnings(action="ignore"):
        warned(run, progress=False)


#: What Python reads of the history.
OF_ROWS: dict[str, Callable[[Path], object]] = {
    "history": lambda path: Run(path).history,
    "score": lambda path: Run(path).score,
    "skipped": lambda path: Run(path).skipped,
    "repr": lambda path: repr(Run(path)),
    "warnings": lambda path: told(Run(path)),
    "table": lambda path: Sweep({"a": {0: Run(path)}}).table,
}


def damaged(folder: Path, **odd: Any) -> Path:
    """A run whose only row has these values."""
    path = folder if folder.exists() else finished(folder, {"rounds": 1})
    history(path, [ROW])
    (path / "history.jsonl").write_text(json.dumps({**ROW, **odd}) + "\n")
    return path


@pytest.mark.parametrize("name", OF_ROWS)
def test_python_raises_no_other_error_for_a_damaged_history(name: str, tmp_path: Path) -> None:
    for column in ROW:
        for value in ODD:
            path = damaged(tmp_path / "run", **{column: value})
            with contextlib.suppress(DataError):
                OF_ROWS[name](path)


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("history", {"metrics": True}),
        ("score", {"score": "x"}),
        ("skipped", {"clients_skipped": [1]}),
        ("repr", {"clients_skipped": "x"}),
        ("table", {"seconds": "x"}),
    ],
)
def test_a_value_of_another_type_is_no_figure(name: str, odd: dict[str, Any], tmp_path: Path) -> None:
    path = damaged(tmp_path / "run", **odd)
    with pytest.raises(DataError, match=re.escape(f"the record in {path} is damaged")):
        OF_ROWS[name](path)


@pytest.mark.parametrize("text", ["null", '"x"', "[]", "7", '[["a", 1]]', "{"])
def test_a_summary_that_is_no_object_is_named(text: str, tmp_path: Path) -> None:
    path = damaged(tmp_path / "run")
    (path / "summary.json").write_text(text)
    with pytest.raises(DataError, match=r"summary\.json cannot be read: "):
        _ = Run(path).summary


@pytest.mark.parametrize("odd", [{"round": "x"}, {"loss": 1e308}, {"seconds": 1e308}, {"score": [1]}])
async def test_a_comparison_on_the_web_page_names_the_damaged_runs(odd: dict[str, Any], tmp_path: Path) -> None:
    for name in "ab":
        damaged(tmp_path / name, **odd)
    async with client(tmp_path) as browser:
        answer = await browser.get("compare.json?run=a&run=b")
        assert answer.status_code == 409, answer.text
        assert str(tmp_path / "a") in answer.json()["error"]
        for name in "ab":
            damaged(tmp_path / name)
        assert (await browser.get("compare.json?run=a&run=b")).status_code == 200  # the files are restored


def test_a_report_that_compares_damaged_runs_names_them(tmp_path: Path) -> None:
    paths = [damaged(tmp_path / name, seconds=1e308) for name in "ab"]
    with pytest.raises(DataError, match=rf"one of the records in {paths[0]}, {paths[1]} is damaged: OverflowError"):
        write(paths, tmp_path / "report.html")


@pytest.mark.parametrize(
    "odd", [{"round": []}, {"round": "x"}, {"metrics": True}, {"score_per_client": True}, {"score": 10**400}]
)
def test_trackers_name_a_damaged_event(odd: dict[str, Any], tmp_path: Path) -> None:
    path = damaged(tmp_path / "run")
    ended(path)
    begun = {"event": "run_started", "run": "abcd1234", "round": 0}
    events = [begun, {"event": "round_finished", **ROW, **odd}]
    lines = [json.dumps({"time": "2026-01-01T00:00:00Z", **event}) + "\n" for event in events]
    (path / "events.jsonl").write_text("".join(lines))
    with pytest.raises(DataError, match=r"events\.jsonl has a damaged event"):
        list(Reader(RunDirectory(path)).read())


@pytest.mark.parametrize("name", ["history.jsonl", "config.toml"])
def test_a_number_without_end_does_not_hide_the_list_of_runs(name: str, tmp_path: Path) -> None:
    path = damaged(tmp_path / "run")
    (path / name).write_text('{"round": 1e999}\n' if name == "history.jsonl" else "rounds = inf\n")
    [(run, directory)] = Runs(tmp_path).found().items()
    assert "cannot be read" in glance(run, directory).title


def test_a_local_run_with_a_score_that_no_float_can_hold_is_refused(tmp_path: Path) -> None:
    path = finished(tmp_path / "alone", {"rounds": 1, "scheme": "independent", "clients": 2})
    summary = json.loads((path / "summary.json").read_text())
    wanted = parse(RunConfig, (path / "config.toml").read_text(), path)
    asked = dataclasses.replace(wanted, local_run=path)
    assert local_run.recorded(asked) == {0: 0.5, 1: 0.5}
    summary["last"]["per_client"]["0"] = 10**400
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match=re.escape(f"--local-run {path} holds a run that did not end")):
        local_run.recorded(asked)
