from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgsp.errors import DataError
from top_server.pictures.distances import by_coalition, draw_distances, literal, name_clients, read_distances


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(4, 4), dpi=120).add_subplot()


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_clients_are_ordered_by_coalition_and_those_in_none_come_last() -> None:
    assert by_coalition([1, 2, 5, 7, 9], [[9, 2], [8], [7, 1, 4]]) == ([1, 7, 2, 9, 5], [2, 2])
    assert by_coalition([3, 1], []) == ([1, 3], [])


def test_rows_follow_the_coalitions_and_values_below_0_are_0(axes: Axes) -> None:
    matrix = np.array([[0, 0.9, -0.2], [0.9, 0, 0.5], [-0.2, 0.5, 0]])
    image = draw_distances(axes, [4, 5, 6], matrix, [[5], [4, 6]])
    np.testing.assert_array_equal(image.get_array(), [[0, 0, 0.9], [0, 0, 0.5], [0.9, 0.5, 0]])
    assert image.get_clim() == (0, 1)
    assert names(axes) == ["4", "6", "5"]


def test_unknown_distances_are_drawn_as_far_apart_as_they_count(axes: Axes) -> None:
    image = draw_distances(axes, [0, 1], np.array([[0, np.nan], [np.nan, 0]]), [])
    shown = image.get_array()
    assert shown is not None
    np.testing.assert_array_equal(np.ma.filled(shown, -1), [[0, 1], [1, 0]])


def test_every_coalition_is_outlined_along_the_diagonal(axes: Axes) -> None:
    draw_distances(axes, range(4), np.zeros((4, 4)), [[0, 1], [2]])
    squares = [tuple(set(np.asarray(line.get_data()[way])) for way in (0, 1)) for line in axes.lines]
    assert squares == [({-0.5, 1.5}, {-0.5, 1.5}), ({1.5, 2.5}, {1.5, 2.5})]


@pytest.mark.parametrize("clients", [range(20), range(100, 130), range(1000, 1200)], ids=["20", "30", "200"])
def test_names_of_clients_do_not_touch(axes: Axes, clients: range) -> None:
    draw_distances(axes, clients, np.zeros((len(clients), len(clients))), [])
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) >= 20
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def test_few_clients_are_all_named(axes: Axes) -> None:
    name_clients(axes, "x", [3, 1, 2])
    assert names(axes) == ["3", "1", "2"]


def test_a_run_without_distances_has_none(tmp_path: Path) -> None:
    assert read_distances(tmp_path / "distances.json") is None


@pytest.mark.parametrize("document", ["", "[]", {"clients": [], "distances": []}, {"clients": [0], "distances": [[]]}])
def test_a_file_without_distances_is_named(tmp_path: Path, document: object) -> None:
    path = tmp_path / "distances.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(DataError, match=r"distances\.json holds no distances"):
        read_distances(path)


def test_of_a_long_text_the_begin_is_drawn() -> None:
    assert literal("m$" * 50_000) == r"m\$" * 100 + "..."
