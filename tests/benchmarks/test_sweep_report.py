"""What a sweep prints and draws of made-up runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import sweep_report
from benchmarks.results.bars import figure_of
from benchmarks.results.pictures import panels
from fedgsp.errors import ConfigError
from tests.support.finished_runs import finished, history, row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS = {"scheme": "hcct", "task": "digits"}
HEAD = 2  # lines


def played(directory: Path, *accuracies: list[float], rounds: int = 0, **last: float) -> Path:
    """A run with these accuracies by client after each round; with `rounds`, the last rounds are not evaluated."""
    rows = [row(number, dict(enumerate(values))) for number, values in enumerate(accuracies, 1)]
    rows[-1] |= last
    rows += [{"round": number, "accuracy": None} for number in range(len(rows) + 1, rounds + 1)]
    history(finished(directory, SETTINGS), rows)
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, list[Path]]:
    """Seed 1 of the first variant, and the only one of the last, miss a client in the last round: a poor one."""
    return {
        "some": [
            played(tmp_path / "some-0", [0.75, 0.25], [0.5, 0.25]),
            played(tmp_path / "some-1", [0.75, 0.25], [0.75]),
        ],
        "all": [played(tmp_path / "all-0", [1.0, 0.5], [0.75, 0.5], ipr=0.5, rsd=0.25)],
        "none": [played(tmp_path / "none-0", [0.75, 0.5, 0.25], [0.75, 0.5])],
        "failed": [tmp_path / "failed-0"],
    }


NAMED = [
    "",
    "Left out above, because their last round did not evaluate all clients:",
    "",
    "- some-1: last evaluation in round 2 of 2, with 1 of 2 clients",
    "- none-0: last evaluation in round 2 of 2, with 2 of 3 clients",
]


def test_a_partial_last_round_is_in_no_mean_and_named_below_the_errors(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_report.tell(runs, "errors")
    lines = capsys.readouterr().out.splitlines()
    assert lines[HEAD:-5] == [
        "| some | 2 | 50.00 +- 0.00 | 62.50 (1 of 2 seeds) | 25.00 | 25.00 | 75.00 | 0.0 |",
        "| all | 1 | 25.00 | 37.50 | 25.00 | 0.00 | 50.00 | 0.0 |",
        "| none | 1 | 50.00 | - | 20.41 | 25.00 | 75.00 | 0.0 |",
    ]
    assert lines[-5:] == NAMED


def test_a_partial_last_round_is_named_below_the_gains(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_report.tell(runs, "gains")
    lines = capsys.readouterr().out.splitlines()
    assert lines[HEAD:-5] == [
        "| some | 2 | 37.50 (1 of 2 seeds) | - | - | 2: 1 1 (1 of 2), 1: 1 (1 of 2) |",
        "| all | 1 | 62.50 | 50.00 | 25.00 | 2: 1 1 |",
        "| none | 1 | - | - | - | 2: 1 1 |",
    ]
    assert lines[-5:] == NAMED


@pytest.mark.parametrize("figures", sweep_report.COLUMNS)
def test_of_runs_that_all_clients_evaluated_nothing_is_said(
    figures: str, runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_report.tell({"all": runs["all"]}, figures)
    assert len(capsys.readouterr().out.splitlines()) == HEAD + 1


def test_an_earlier_round_is_not_taken_for_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_report.tell({"some": [played(tmp_path / "some-0", [0.75, 0.5], rounds=9)]}, "errors")
    lines = capsys.readouterr().out.splitlines()
    assert lines[HEAD].split(" | ")[:4] == ["| some", "1", "37.50", "-"]
    assert lines[-1] == "- some-0: last evaluation in round 1 of 9, with 2 of 2 clients"


def test_figures_of_single_clients_are_means_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics: dict[str, Any] = {"metrics_per_client": {"AUC": {"0": 0.5}}}
    runs = [played(tmp_path / "0", [0.5, 0.25], **metrics), played(tmp_path / "1", [0.75, 0.25], **metrics)]
    sweep_report.tell_clients({"a": runs})
    accuracy, auc = capsys.readouterr().out.strip().split("\n\n")
    assert accuracy.splitlines()[HEAD] == "| a | 62.50 +- 17.68 | 25.00 +- 0.00 |"
    assert auc.splitlines()[0] == "| AUC of client | 0 | 1 |"
    assert auc.splitlines()[HEAD] == "| a | 50.00 +- 0.00 | - |"


def drawn(axes: Axes) -> tuple[list[str], list[float], list[tuple[float, float]], list[str]]:
    """Labels (of the first panel, the others share them), lengths of the bars, dots, and the numbers at the edge."""
    bars = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    dots = [(float(x), float(y)) for x, y in np.asarray(axes.collections[0].get_offsets())]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return labels, bars, dots, [text.get_text() for text in axes.texts]


def both(runs: dict[str, list[Path]], figures: str) -> list[Any]:
    rows = {name: dict(enumerate(by_run.values())) for name, by_run in sweep_report.results(runs).items()}
    return [drawn(axes) for axes in figure_of(panels(sweep_report.PANELS[figures], rows, "")).axes]


def test_errors_are_a_bar_per_variant_at_the_mean_and_a_dot_per_seed_without_partial_last_rounds(
    runs: dict[str, list[Path]],
) -> None:
    best, last = both(runs, "errors")
    assert best == (
        ["some", "all", "none"],
        [50, 25, 50],
        [(50, 0), (50, 0), (25, 1), (50, 2)],
        ["50.0", "25.0", "50.0"],
    )
    assert last[2:] == ([(62.5, 0), (37.5, 1)], ["62.5", "37.5", "-"])


def test_gains_are_accuracy_and_ipr_where_a_run_tells_it(runs: dict[str, list[Path]]) -> None:
    accuracy, ipr = both(runs, "gains")
    assert accuracy[2] == [(37.5, 0), (62.5, 1)]
    assert ipr[2:] == ([(50, 1)], ["-", "50.0", "-"])


def test_it_is_written(runs: dict[str, list[Path]], tmp_path: Path) -> None:
    for ending, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        out = tmp_path / f"sweep.{ending}"
        sweep_report.check(out)
        sweep_report.draw(runs, "gains", out)
        assert out.read_bytes().startswith(begin)


def test_where_no_run_is_finished_there_is_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        sweep_report.draw({"a": [tmp_path / "none"]}, "errors", tmp_path / "sweep.png")


@pytest.mark.parametrize("name", ["sweep.txt", "sweep", "none/sweep.png"])
def test_a_file_that_cannot_be_written_is_refused_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written; name a file such as sweep\.png"):
        sweep_report.check(tmp_path / name)


def test_without_matplotlib_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match="pip install 'matplotlib>=3\\.9'"):
        sweep_report.check(tmp_path / "sweep.png")
