"""The tables of a sweep: what is printed of made-up runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sweep_tables
from tests.support.finished_runs import finished

SETTINGS = {"scheme": "hcct", "task": "digits"}
HEAD = 2  # lines


def ended(directory: Path, best: list[float], last: list[float], evaluated: int = 9) -> Path:
    """A run with these accuracies by client; clients at the end of `best` that `last` lacks were not evaluated."""
    finished(directory, SETTINGS)
    told: dict[str, Any] = {"rounds": 9}
    for name, values in (("best", best), ("last", last)):
        mean = sum(values) / len(values)
        spread = {"mean": mean, "std": 0.0, "min": min(values), "max": max(values), "ipr": mean, "rsd": 0.0}
        told[name] = spread | {"per_client": dict(zip("0123", values, strict=False))}
    told["last"]["round"] = evaluated
    (directory / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, list[Path]]:
    """Seed 1 of the first variant, and the only one of the last, miss a client in the last round: a poor one."""
    return {
        "some": [
            ended(tmp_path / "some-0", [0.75, 0.25], [0.5, 0.25]),
            ended(tmp_path / "some-1", [0.75, 0.25], [0.75]),
        ],
        "all": [ended(tmp_path / "all-0", [1.0, 0.5], [0.75, 0.5])],
        "none": [ended(tmp_path / "none-0", [0.75, 0.5, 0.25], [0.75, 0.5])],
    }


NAMED = [
    "",
    "Left out above, because their last round did not evaluate all clients:",
    "",
    "- some-1: last evaluation in round 9 of 9, with 1 of 2 clients",
    "- none-0: last evaluation in round 9 of 9, with 2 of 3 clients",
]


def test_a_partial_last_round_is_in_no_mean_and_named_below_the_errors(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_tables.table(runs)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:4] for line in lines[HEAD:-5]] == [
        ["| some", "2", "50.00 +- 0.00", "62.50"],
        ["| all", "1", "25.00", "37.50"],
        ["| none", "1", "50.00", "-"],
    ]
    assert lines[-5:] == NAMED


def test_a_partial_last_round_is_named_below_the_gains(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_tables.gains(runs)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:4] for line in lines[HEAD:-5]] == [
        ["| some", "2", "37.50", "37.50"],
        ["| all", "1", "62.50", "62.50"],
        ["| none", "1", "-", "-"],
    ]
    assert lines[-5:] == NAMED


def test_of_runs_that_all_clients_evaluated_nothing_is_said(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    for of in (sweep_tables.table, sweep_tables.gains):
        of({"all": runs["all"]})
        assert len(capsys.readouterr().out.splitlines()) == HEAD + 1


def test_an_earlier_round_is_not_taken_for_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_tables.table({"some": [ended(tmp_path / "some-0", [0.75, 0.5], [0.75, 0.5], evaluated=8)]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[HEAD].split(" | ")[:4] == ["| some", "1", "37.50", "-"]
    assert lines[-1] == "- some-0: last evaluation in round 8 of 9, with 2 of 2 clients"
