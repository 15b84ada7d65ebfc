from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedgsp.errors import ConfigError, DataError
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp.visible import visible
from top_server.baseline import local_run
from top_server.pictures.distances import read_distances
from top_server.pictures.groups import MANY, fitting
from top_server.pictures.run import draw, panels
from top_server.pictures.shown import gains_over, groups_by_round, last_partition, names_of, teams_of
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

ROWS: list[dict[str, Any]] = [
    {"round": 1, "accuracy": 0.5, "loss": 1.0, "partition": [[0], [1]], "accuracy_per_client": {"0": 0.4, "1": 0.6}},
    {"round": 2, "accuracy": None, "loss": None, "partition": [[0, 1]]},
    {"round": 3, "accuracy": 0.7, "loss": 0.8, "partition": [[0, 1], [2]], "accuracy_per_client": {"0": 0.7}},
]


def run_directory(path: Path, rows: list[dict[str, Any]]) -> Path:
    (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def told_by(picture: Path) -> str:
    """What is written in an SVG: matplotlib draws letters as curves, and keeps the words in comments."""
    return " ".join(re.findall("<!-- (.*?) -->", picture.read_text()))


def compared(path: Path, alone: dict[str, float] | None, **changes: Any) -> Path:
    """The directory of a run that was compared with a local run, made with other settings if some are given."""
    local = path / "alone"
    config = RunConfig(scheme="fedcollab", local_run=local)
    (path / "config.toml").write_text(dump(config))
    if alone is not None:
        local.mkdir()
        (local / "config.toml").write_text(dump(dataclasses.replace(local_run.settings(config), **changes)))
        (local / "summary.json").write_text(json.dumps({"last": {"round": config.rounds, "per_client": alone}}))
    return run_directory(path, ROWS)


def test_a_group_has_the_number_of_its_smallest_member() -> None:
    found = fitting({1: [[0], [1, 7]], 3: [[7, 0]]}, range(1, 4), lasting=True, room=MANY)
    assert found is not None
    assert found.clients == [0, 1, 7]
    np.testing.assert_array_equal(found.image, [[0, np.nan, 0], [1, np.nan, np.nan], [1, np.nan, 0]])


def test_groups_that_last_are_numbered_in_the_order_in_which_they_came_and_keep_their_numbers() -> None:
    """Numbers of members would not do: modulo the colours of a picture, 0, 12 and 60 can be one."""
    teams = {1: [[60, 61], [0, 12]], 2: [[24], [12, 60], [0]], 3: [[0], [60]]}
    found = fitting(teams, range(2, 4), lasting=True, room=MANY)
    assert found is not None
    assert found.clients == [0, 12, 24, 60]
    np.testing.assert_array_equal(found.image, [[1, 1], [3, np.nan], [2, np.nan], [3, 0]])


@pytest.mark.parametrize("rows", [ROWS, [{"round": 1, "accuracy": 0.1, "loss": 2.0}]], ids=["groups", "one model"])
def test_a_run_is_drawn_into_one_picture(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    draw(run_directory(tmp_path, rows), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_finished_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished round"):
        draw(run_directory(tmp_path, []), tmp_path / "run.png")


#: Column -> values that it cannot have.
WRONG: dict[str, list[Any]] = {
    **{key: [[1], {"a": 1}, "0.5", True] for key in ("accuracy", "loss", "ipr")},
    "score_per_client": [{"9" * 5000: 0.5}],
    "round": [None, [1], "1", -1, 1 << 40],
    "accuracy_per_client": [[0.5], 0.5, {"0": [1]}, {"a": 0.5}],
    "partition": [1, [1], [[]], [["a"]], {"0": [1]}, [[-1]], [[1 << 63]]],
}


@pytest.mark.parametrize(("column", "value"), [(column, value) for column in WRONG for value in WRONG[column]])
def test_a_value_that_cannot_be_drawn_is_named_with_its_line(tmp_path: Path, column: str, value: object) -> None:
    rows = [ROWS[0], {**ROWS[1], column: value}]
    with pytest.raises(DataError, match=f"history.jsonl, line 2: {column} is"):
        draw(run_directory(tmp_path, rows), tmp_path / "run.png")


@pytest.mark.parametrize("name", ["no/folder/run.png", "run.colour"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--out .* cannot be written"):
        draw(run_directory(tmp_path, ROWS), tmp_path / name)


def test_without_matplotlib_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'matplotlib>=3.9'"):
        draw(run_directory(tmp_path, ROWS), tmp_path / "run.png")


def one_model(path: Path, teams: Mapping[int, list[list[int]]]) -> Path:
    """The directory of a run with one global model and these groups in each round."""
    events = [{"event": "round_started", "round": number, "teams": groups} for number, groups in teams.items()]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run_directory(path, [{"round": number, "accuracy": 0.5, "loss": 1.0} for number in teams])


def groups_of(path: Path) -> Any:
    return groups_by_round(read_lines(path / "history.jsonl"), lambda: teams_of(RunDirectory(path)))


def test_of_one_global_model_the_groups_that_trained_are_drawn_by_their_number(tmp_path: Path) -> None:
    one_model(tmp_path, {1: [[4, 0]], 2: [[2, 0], [4]]})
    found = groups_of(tmp_path)
    assert (found.clients, list(found.rounds)) == ([0, 2, 4], [1, 2])
    np.testing.assert_array_equal(found.image, [[0, 0], [np.nan, 0], [0, 1]])
    draw(tmp_path, tmp_path / "run.svg")
    told = "3 clients, 2 rounds: a colour is a group of its round, white did not train"
    assert told in told_by(tmp_path / "run.svg")


def test_the_last_try_of_a_round_is_drawn_and_a_round_that_did_not_finish_is_not(tmp_path: Path) -> None:
    one_model(tmp_path, {1: [[0, 1]], 2: [[2]]})
    with (tmp_path / "events.jsonl").open("a") as events:
        events.write('{"event": "round_started", "round": 2, "teams": [[1]]}\n')
        events.write('{"event": "round_started", "round": 3, "teams": [[5]]}\n')
    found = groups_of(tmp_path)
    np.testing.assert_array_equal(found.image, [[0, np.nan], [0, 0]])
    assert found.clients == [0, 1]


def test_of_many_rounds_and_clients_the_last_rounds_and_some_clients_are_drawn(tmp_path: Path) -> None:
    one_model(tmp_path, {number: [list(range(400)), list(range(400, 451))] for number in range(1, 201)})
    found = groups_of(tmp_path)
    assert found.rounds == range(101, 201)
    assert (len(found.clients), found.clients[0], found.clients[-1]) == (150, 0, 450)
    assert found.image.shape == (150, 100)
    assert found.title.startswith("150 of 451 clients, 100 of 200 rounds: ")
    draw(tmp_path, tmp_path / "run.png")


def test_of_many_rounds_and_clients_that_last_no_more_are_drawn_than_a_picture_has_points(tmp_path: Path) -> None:
    rows = [{"round": number, "accuracy": None, "loss": 1.0, "partition": [[0], [1]]} for number in range(1, 1201)]
    rows[-1]["partition"] = [list(range(700)), list(range(700, 1301))]
    found = groups_of(run_directory(tmp_path, rows))
    assert found.rounds == range(201, 1201)
    assert (len(found.clients), found.clients[0], found.clients[-1]) == (1000, 0, 1300)
    assert found.image.shape == (1000, 1000)
    draw(tmp_path, tmp_path / "run.svg")
    told = "1,000 of 1,301 clients, 1,000 of 1,200 rounds: a group has the colour of its first member"
    assert told in told_by(tmp_path / "run.svg")


def test_of_more_clients_than_a_picture_has_points_some_have_a_curve_and_gains_are_an_area(tmp_path: Path) -> None:
    scores = {str(client): 0.001 + client / 1300 for client in range(1301)}
    compared(tmp_path, dict.fromkeys(scores, 0.5))
    run_directory(tmp_path, [{"round": 1, "accuracy": 0.5, "loss": 1.0, "accuracy_per_client": scores}])
    draw(tmp_path, tmp_path / "run.svg")
    told = told_by(tmp_path / "run.svg")
    assert "1,000 of 1,301 clients" in told
    assert "652 of 1301 clients are better off than alone" in told
    assert (tmp_path / "run.svg").stat().st_size < 1 << 20


def test_too_many_distances_are_left_out_of_the_picture_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "distances.json").write_text(json.dumps({"clients": [0, 1, 2], "distances": np.eye(3).tolist()}))
    run_directory(tmp_path, ROWS)
    for limit, least in (("MOST_CLIENTS", 2), ("MOST_BYTES", 60)):
        caplog.clear()
        with monkeypatch.context() as change:
            change.setattr(f"top_server.pictures.distances.{limit}", least)
            draw(tmp_path, tmp_path / "run.svg")
        assert "distances, and coalitions outlined" not in told_by(tmp_path / "run.svg")
        assert "distances.json are not drawn: it has more than" in caplog.text


def test_partitions_of_the_history_come_before_the_groups_of_the_events(tmp_path: Path) -> None:
    one_model(tmp_path, {1: [[9]]})
    assert groups_of(run_directory(tmp_path, ROWS)).clients == [0, 1, 2]


@pytest.mark.parametrize("events", [None, "not JSON\n"], ids=["gone", "damaged"])
def test_without_events_groups_are_left_out_with_a_warning(
    tmp_path: Path, events: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    run_directory(tmp_path, [{"round": 1, "accuracy": 0.5, "loss": 1.0}])
    if events is not None:
        (tmp_path / "events.jsonl").write_text(events)
    assert groups_of(tmp_path) is None
    assert "groups are not drawn: " in caplog.text


def test_what_is_there_is_what_is_drawn(tmp_path: Path) -> None:
    few = groups_of(run_directory(tmp_path, ROWS))
    assert panels(None, False, False) == [["score", "loss"]]
    assert panels(few, True, True) == [["score", "loss", "groups"], ["distances", "gains", "gains"]]
    assert panels(few, False, False, loss=False, metrics=True) == [["score", "metrics", "groups"]]
    assert panels(few, True, False) == [["score", "loss", "groups", "distances"]]
    assert panels(few, False, True) == [["score", "loss", "groups"], ["gains"] * 3]
    many = groups_of(run_directory(tmp_path, [{**ROWS[0], "partition": [list(range(100))]}]))
    assert panels(many, False, False) == [["score", "loss"], ["groups"] * 2]
    assert panels(many, True, True) == [["score", "loss"], ["distances", "gains"], ["groups"] * 2]


def test_distances_and_gains_are_panels_of_their_own(tmp_path: Path) -> None:
    compared(tmp_path, {"0": 0.5, "1": 0.9})
    (tmp_path / "distances.json").write_text(json.dumps({"clients": [0, 1, 2], "distances": np.eye(3).tolist()}))
    draw(tmp_path, tmp_path / "run.svg")
    told = told_by(tmp_path / "run.svg")
    assert "distances, and coalitions outlined" in told
    assert "1 of 1 clients are better off than alone" in told


def test_distances_of_pairs_that_were_not_compared_are_unknown(tmp_path: Path) -> None:
    document = {"clients": [0, 1, 2], "distances": [[0, 0.5, None], [0.5, 0, None], [None, None, 0]]}
    (tmp_path / "distances.json").write_text(json.dumps(document))
    found = read_distances(tmp_path / "distances.json")
    assert found is not None
    np.testing.assert_array_equal(found[1], [[0, 0.5, np.nan], [0.5, 0, np.nan], [np.nan, np.nan, 0]])
    draw(run_directory(tmp_path, ROWS), tmp_path / "run.svg")
    assert "distances, and coalitions outlined" in told_by(tmp_path / "run.svg")


def test_the_last_ipr_and_rsd_are_told(tmp_path: Path) -> None:
    rows = [{**row, "ipr": ipr, "rsd": 0.0312} for row, ipr in zip(ROWS, (0.25, 0.5, 0.75), strict=True)]
    draw(run_directory(tmp_path, rows), tmp_path / "run.svg")
    assert "round 3: IPR 75.0 %, RSD 3.1 %" in told_by(tmp_path / "run.svg")


@pytest.mark.parametrize(
    ("alone", "changes"), [(None, {}), ({"0": 0.5}, {"seed": 7})], ids=["gone", "of another seed"]
)
def test_a_local_run_that_cannot_be_used_is_left_out(
    tmp_path: Path, alone: dict[str, float] | None, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    draw(compared(tmp_path, alone, **changes), tmp_path / "run.svg")
    assert "better off" not in told_by(tmp_path / "run.svg")
    assert ("was made with --seed 7" in caplog.text) == bool(changes)


def test_gains_are_those_of_the_last_evaluation() -> None:
    rows = [*ROWS, {"round": 4, "accuracy": None, "loss": None}]
    assert gains_over({0: 0.5, 1: 0.9, 5: 0.1}, rows) == {0: pytest.approx(0.2)}
    assert gains_over({}, rows) == gains_over({0: 0.5}, rows[1:2]) == {}


def test_the_last_partition_is_that_of_the_last_row_with_one() -> None:
    assert last_partition([*ROWS, {"round": 4}]) == [[0, 1], [2]]
    assert last_partition([{"round": 4}]) == []


def test_a_score_and_metrics_are_drawn_with_the_names_of_clients(tmp_path: Path) -> None:
    rows = [
        {
            "round": number,
            "accuracy": None,
            "loss": 1.0,
            "partition": [[0], [1]],
            "scored_by": "-m$ae",
            "score": -2.0 / number,
            "score_per_client": {"0": -1.0, "1": -3.0 / number},
            "metrics": {"m$ae": 2.0 / number, "r2": None if number == 1 else 0.5, "a\nb": 0.1, "_f1": 0.2},
        }
        for number in (1, 2)
    ]
    run_directory(tmp_path, rows)
    joined = {"event": "node_joined", "names": {"1": "Gh$ent"}}
    (tmp_path / "events.jsonl").write_text(json.dumps(joined) + "\n")
    draw(tmp_path, tmp_path / "run.svg")
    words = told_by(tmp_path / "run.svg")
    dollars = ("m$ae on the clients' test parts", "1 (Gh$ent)")
    for told in (*dollars, "over all clients", "r2", r"a\nb", "_f1", "metrics of the task"):
        assert told in words, told


def test_the_name_of_a_run_is_no_formula(tmp_path: Path) -> None:
    name = r"1$ \frac{ 2$"
    (tmp_path / name).mkdir()
    draw(run_directory(tmp_path / name, ROWS), tmp_path / "run.svg")
    assert visible(name) in told_by(tmp_path / "run.svg")


def test_a_run_rated_by_its_loss_has_one_panel_of_it(tmp_path: Path) -> None:
    row = {
        "round": 1,
        "accuracy": None,
        "loss": 1.5,
        "scored_by": "-loss",
        "score": -1.5,
        "score_per_client": {"0": -1.5},
    }
    draw(run_directory(tmp_path, [row]), tmp_path / "run.svg")
    words = told_by(tmp_path / "run.svg")
    assert words.count("round") == 1
    assert "loss on the clients' test parts" in words


def test_long_names_of_clients_are_cut_and_leave_room_for_the_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {str(client): f"University hospital number {client}, department of radiology" for client in range(24)}
    scores = dict.fromkeys(names, 0.5)
    row = {"round": 1, "accuracy": 0.5, "loss": 1.0, "partition": [[*range(24)]], "accuracy_per_client": scores}
    run = run_directory(tmp_path, [row])
    (run / "events.jsonl").write_text(json.dumps({"event": "node_joined", "names": names}) + "\n")
    (run / "distances.json").write_text(json.dumps({"clients": [*range(24)], "distances": np.eye(24).tolist()}))
    heights: list[float] = []

    def watched(figure: Figure, *args: Any, **options: Any) -> None:
        saved(figure, *args, **options)
        heights.extend(axes.get_position().height for axes in figure.axes)

    saved = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", watched)
    draw(run, run / "run.svg")
    assert "3 (University hospi...)" in told_by(run / "run.svg")
    assert min(heights) > 0.4


def test_a_long_name_of_a_run_is_a_title_of_several_lines(tmp_path: Path) -> None:
    name = "m$" * 115
    (tmp_path / name).mkdir()
    draw(run_directory(tmp_path / name, ROWS), tmp_path / "run.svg")
    told = told_by(tmp_path / "run.svg")
    assert len(max(told.split(), key=len)) == 120
    assert told.count("m$") == 115


def test_letters_that_the_font_lacks_are_drawn_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "\u5317\u4eac").mkdir()
    draw(run_directory(tmp_path / "\u5317\u4eac", ROWS), tmp_path / "run.png")


@pytest.mark.parametrize("names", ["Ghent", {"x": "Ghent"}, {"1": 3}, {"9" * 5000: "Ghent"}, [1], None])
def test_names_that_are_damaged_are_not_drawn(tmp_path: Path, names: Any) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"event": "node_joined", "names": names}) + "\n")
    assert names_of(RunDirectory(tmp_path)) == {}
