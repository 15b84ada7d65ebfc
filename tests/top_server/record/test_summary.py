from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from top_server.record.directory import RunDirectory
from top_server.record.figures import spread, summarise
from top_server.record.journal import Journal
from top_server.record.summary import write_summary

ROWS: list[dict[str, Any]] = [
    {"round": 1, "accuracy_per_client": {"0": 0.5, "1": 0.9}},
    {"round": 2, "accuracy_per_client": {"0": 0.7, "1": 0.6}},
    {"round": 3, "accuracy": None},
]


def test_last_and_best_are_told_apart_client_by_client() -> None:
    found = summarise(ROWS)
    assert found is not None
    assert found["last"]["per_client"] == {0: 0.7, 1: 0.6}
    assert found["best"]["per_client"] == {0: 0.7, 1: 0.9}
    assert found["last"]["mean"] == pytest.approx(0.65)
    assert (found["last"]["round"], found["rounds"]) == (2, 3)
    assert (found["best"]["min"], found["best"]["max"]) == (0.7, 0.9)


def test_the_figures_of_the_end_are_of_one_round() -> None:
    rows: list[dict[str, Any]] = [
        {"round": 1, "scored_by": "-mae", "score": -2.0, "score_per_client": {"0": -2.0}},
        {"round": 2, "scored_by": "-mae", "score": None, "metrics_per_client": {"mae": {"0": None, "1": 3.0}}},
    ]
    found = summarise(rows)
    assert found is not None
    assert found["last"]["round"] == 2
    assert "mean" not in found["last"]
    assert found["last"]["metrics"]["mae"]["per_client"] == {0: None, 1: 3.0}
    assert found["best"]["mean"] == -2.0


def test_the_deviation_over_clients_is_that_of_the_population() -> None:
    """Table 2, independent, recomputed from its means: 9.17 (algorithms 3.8)."""
    assert spread([38.16, 25.12, 15.8])["std"] == pytest.approx(9.17, abs=0.01)


def test_a_run_without_figures_per_client_has_no_summary() -> None:
    assert summarise([{"accuracy": 0.5}]) is None


@pytest.mark.parametrize("ends", [(), (2, 4)])
def test_an_extended_run_says_so_without_figures_per_client_too(tmp_path: Path, ends: tuple[int, ...]) -> None:
    directory = RunDirectory(tmp_path)
    directory.history.write_text('{"round": 1, "accuracy": 0.5}\n')
    with Journal(directory) as journal:
        write_summary(directory, journal, {}, ends=ends)
    assert directory.summary.exists() is bool(ends)
    if ends:
        assert json.loads(directory.summary.read_text()) == {"extended_after": [2, 4]}
    assert directory.events.read_text() == ""


def test_gains_are_those_of_the_last_evaluation_if_it_has_some() -> None:
    rows = [{**row, "ipr": ipr, "rsd": 0.1} for row, ipr in zip(ROWS, (0.5, 0.75, None), strict=True)]
    found = summarise(rows)
    assert found is not None
    assert (found["last"]["ipr"], found["last"]["rsd"]) == (0.75, 0.1)
    rows[1].update(ipr=None, rsd=None)  # somebody was missing
    found = summarise(rows)
    assert found is not None
    assert not found["last"].keys() & {"ipr", "rsd"}


def test_a_score_is_summed_up_with_the_metrics_and_names_of_the_clients() -> None:
    rows: list[dict[str, Any]] = [
        {"round": n, "accuracy": None, "scored_by": "-mae", "score_per_client": {"0": -worst, "3": -2.0}}
        for n, worst in enumerate((4.0, 3.0, 5.0), start=1)
    ]
    rows[-1] |= {"metrics": {"auc": 0.5}, "metrics_per_client": {"auc": {"3": 0.5, "0": None}}}
    found = summarise(rows, {3: "Ghent"})
    assert found is not None
    assert (found["scored_by"], found["names"]) == ("-mae", {3: "Ghent"})
    assert found["last"]["per_client"] == {0: -5.0, 3: -2.0}
    assert found["best"]["per_client"] == {0: -3.0, 3: -2.0}
    auc = {"all": 0.5, "mean": 0.5, "std": 0.0, "min": 0.5, "max": 0.5, "per_client": {0: None, 3: 0.5}}
    assert found["last"]["metrics"] == {"auc": auc}


def test_metrics_are_summed_up_where_the_score_of_clients_is_not_told() -> None:
    row = {"round": 1, "accuracy": 0.5, "metrics": {"auc": None}, "metrics_per_client": {"auc": {"1": None}}}
    assert summarise([row]) == {
        "rounds": 1,
        "last": {"round": 1, "metrics": {"auc": {"all": None, "per_client": {1: None}}}},
        "best": {},
    }
