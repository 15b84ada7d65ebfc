"""The picture of a sweep: what is drawn of made-up summaries."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import sweep_picture
from fedgsp.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def summary(directory: Path, best: float, last: float, evaluated: int = 2, **others: float) -> Path:
    directory.mkdir()
    told = {
        "rounds": 9,
        "best": {"mean": best, "per_client": {"0": best, "1": best}},
        "last": {"mean": last, "round": 9, "per_client": dict.fromkeys(map(str, range(evaluated)), last), **others},
    }
    (directory / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    return directory


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, list[Path]]:
    return {
        "fedavg": [summary(tmp_path / "0", 0.75, 0.5, ipr=0.25), summary(tmp_path / "1", 0.5, 0.25, ipr=0.75)],
        "failed": [tmp_path / "2"],
        "0.5-alpha1": [summary(tmp_path / "3", 1.0, 0.75), tmp_path / "4"],
    }


def drawn(axes: Axes) -> tuple[list[str], list[float], list[tuple[float, float]], list[str]]:
    """Labels (of the first panel, the others share them), lengths of the bars, dots, and the numbers at the edge."""
    bars = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    dots = [(float(x), float(y)) for x, y in np.asarray(axes.collections[0].get_offsets())]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return labels, bars, dots, [text.get_text() for text in axes.texts]


def both(runs: dict[str, list[Path]], gains: bool) -> list[Any]:
    return [drawn(axes) for axes in sweep_picture.figure_of(sweep_picture.marks(runs, gains)).axes]


def test_errors_are_a_bar_per_variant_at_the_mean_and_a_dot_per_seed(runs: dict[str, list[Path]]) -> None:
    best, last = both(runs, gains=False)
    assert best == (["fedavg", "0.5-alpha1"], [37.5, 0], [(25, 0), (50, 0), (0, 1)], ["37.5", "0.0"])
    assert last[1:] == ([62.5, 25], [(50, 0), (75, 0), (25, 1)], ["62.5", "25.0"])


def test_gains_are_accuracy_and_ipr_where_a_run_tells_it(runs: dict[str, list[Path]]) -> None:
    accuracy, ipr = both(runs, gains=True)
    assert accuracy[1:] == ([37.5, 75], [(50, 0), (25, 0), (75, 1)], ["37.5", "75.0"])
    assert ipr[1][0] == 50
    assert np.isnan(ipr[1][1])
    assert ipr[2:] == ([(25, 0), (75, 0)], ["50.0", "-"])


def test_the_last_round_of_a_run_that_not_all_clients_evaluated_is_not_drawn(tmp_path: Path) -> None:
    one, other = summary(tmp_path / "0", 0.75, 0.5, ipr=0.25), summary(tmp_path / "1", 0.5, 1.0, 1, ipr=1.0)
    best, last = both({"a": [one, other]}, gains=False)
    assert (best[1], last[1]) == ([37.5], [50])
    assert [panel[1] for panel in both({"a": [one, other]}, gains=True)] == [[50], [25]]


def test_panels_say_what_they_show_from_0_on_and_the_first_variant_is_on_top(runs: dict[str, list[Path]]) -> None:
    for gains, titles in (
        (True, ("accuracy", "IPR")),
        (False, ("error in each client's best", "error after the last")),
    ):
        figure = sweep_picture.figure_of(sweep_picture.marks(runs, gains))
        for axes, title in zip(figure.axes, titles, strict=True):
            assert axes.get_title().startswith(title)
            assert axes.get_title().endswith("%")
            assert axes.get_xlim()[0] == 0
            bottom, top = axes.get_ylim()
            assert bottom > top


def test_names_of_25_variants_do_not_run_into_one_another() -> None:
    panels = {"a": {f"per-fedavg-fedcollab-{number}": [number / 2] for number in range(25)}}
    figure = sweep_picture.figure_of(panels)
    figure.draw_without_rendering()
    labels = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == 25
    assert all(one.y0 > other.y1 for one, other in pairwise(labels))
    assert min(label.x0 for label in labels) >= 0


def test_it_is_written(runs: dict[str, list[Path]], tmp_path: Path) -> None:
    for ending, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        out = tmp_path / f"sweep.{ending}"
        sweep_picture.check(out)
        sweep_picture.draw(runs, True, out)
        assert out.read_bytes().startswith(begin)


def test_where_no_run_is_finished_there_is_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        sweep_picture.draw({"a": [tmp_path / "none"]}, False, tmp_path / "sweep.png")


@pytest.mark.parametrize("name", ["sweep.txt", "sweep", "none/sweep.png"])
def test_a_file_that_cannot_be_written_is_refused_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written; name a file such as sweep\.png"):
        sweep_picture.check(tmp_path / name)


def test_without_matplotlib_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match="install the extra: pip install"):
        sweep_picture.check(tmp_path / "sweep.png")
