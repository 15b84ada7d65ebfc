"""The report of runs: what it says, that texts of others stay texts, and that it needs nothing else."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from typer.testing import CliRunner

from fedgsp.errors import ConfigError, DataError, UserError
from fedgsp.settings.files import dump, parse
from fedgsp.settings.run import RunConfig
from tests.support.finished_runs import BEGAN, history, row
from top_server.cli import app
from top_server.pictures import files
from top_server.pictures.shown import teams_of
from top_server.record.directory import RunDirectory
from top_server.report import charts
from top_server.report.charts import charts_of, together
from top_server.report.comparison import band, rows_of, variants
from top_server.report.facts import Facts, ending, facts
from top_server.report.page import write
from top_server.report.troubles import TROUBLES, troubles

STARTED = {"event": "run_started", "clients": [0, 1, 2], "rounds": 2}
FINISHED = {"event": "run_finished", "rounds": 2}
SKIPPED = {"event": "client_skipped", "round": 1, "group": 0, "client": 1, "reason": "task raised: no disk"}


def events(*found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"time": BEGAN, **one} for one in found]


def recorded(directory: Path, *found: dict[str, Any], rows: Sequence[dict[str, Any]] = (), **settings: Any) -> Path:
    """The directory of a run with these events and rows."""
    directory.mkdir(parents=True)
    config = parse(RunConfig, tomli_w.dumps({"rounds": 2, **settings}), directory)
    (directory / "config.toml").write_text(dump(config), encoding="utf-8")
    lines = "".join(json.dumps(event) + "\n" for event in events(*found))
    (directory / "events.jsonl").write_text(lines, encoding="utf-8")
    history(directory, list(rows))
    return directory


def trained(number: int, *teams: list[int]) -> dict[str, Any]:
    return {"event": "round_started", "round": number, "teams": teams}


def two_rounds(mean: float = 0.5) -> list[dict[str, Any]]:
    found = [row(number, {0: mean - 0.1, 1: mean, 2: mean + 0.1}, seconds=3.0) for number in (1, 2)]
    return [{name: value for name, value in one.items() if name != "partition"} for one in found]


def report(tmp_path: Path, *run_dirs: Path) -> str:
    write(run_dirs, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_finished_run_is_told_with_its_figures_costs_settings_and_charts(tmp_path: Path) -> None:
    hops = [
        {"event": "hop_finished", "round": number, "client": client, "node": "a", "samples": 40, "seconds": 0.5}
        for number in (1, 2)
        for client in range(3)
    ]
    joined = {"event": "node_joined", "node": "a", "clients": 3, "device": "cpu", "torch": "2.13.0"}
    run = recorded(
        tmp_path / "run",
        *(joined, STARTED, trained(1, [0, 1], [2]), trained(2, [0, 1, 2]), *hops, FINISHED),
        rows=two_rounds(),
        learning_rate=0.25,
    )
    found = facts(run)
    assert found.ending.kind == "finished"
    assert ("accuracy, round 2", "50.00 %") in found.result
    assert ("time of a round, median", "3.0 s") in found.costs
    assert ("time of all trainings together", "3.0 s") in found.costs
    assert ("--learning-rate", "0.25") in found.chosen
    assert found.clients[0] == ("0", "a", "40", "2", "", "40.00 %")
    assert found.nodes == [("a", "3", "cpu", "2.13.0", "", "0 B", "0 B", "2026-01-01 00:00:00", "")]
    assert [chart.name for chart in charts_of(run, "x")] == ["x-score", "x-loss", "x-groups", "x-together"]
    text = report(tmp_path, run)
    assert text.count("<img ") == 4
    assert "Nothing went wrong" in text


def test_the_report_fetches_nothing_and_texts_of_others_stay_texts(tmp_path: Path) -> None:
    wicked = "<script>alert(1)</script>\"'&"
    joined = {"event": "node_joined", "node": wicked, "clients": 3, "names": {"0": wicked}, "device": wicked}
    skipped = {**SKIPPED, "client": 0, "reason": f"{wicked}\u202e"}
    failed = {"event": "run_failed", "reason": wicked, "remedy": wicked, "code": 6}
    run = recorded(tmp_path / "<b>run", joined, STARTED, skipped, failed, rows=two_rounds(), task_option={"a": wicked})
    text = report(tmp_path, run)
    assert "<script" not in text
    assert "<b>" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;" in text
    addresses = re.findall(r"""(?:src|href|action|data)\s*=\s*["']?([^"'\s>]*)""", text)
    assert {address.partition(":")[0] for address in addresses} == {"data"}
    assert "@import" not in text
    assert "url(" not in text


FAILURES = [
    ({"event": "run_failed", "reason": "client 2's training diverged", "remedy": "lower it", "code": 6}, "failed"),
    ({"event": "run_stopped", "code": 130}, "stopped"),
    ({"event": "round_started", "round": 1}, "open"),
]


@pytest.mark.parametrize(("last", "kind"), FAILURES)
def test_a_run_without_an_end_says_on_its_first_screen_why_and_what_to_do(
    tmp_path: Path, last: dict[str, Any], kind: str
) -> None:
    run = recorded(tmp_path / "run", STARTED, SKIPPED, last)
    assert facts(run).ending.kind == kind
    text = report(tmp_path, run)
    first = text[: text.index("Result")]
    assert "client 1 was skipped: task raised: no disk" in first
    assert "What to do:" in first
    assert ("client 2&#39;s training diverged" in first) == (kind == "failed")


def test_what_came_after_a_failure_counts() -> None:
    failed = {"event": "run_failed", "reason": "full", "remedy": "make room", "code": 6}
    told = events(STARTED, failed, {**STARTED, "event": "run_resumed"})
    assert ending(told, 0).kind == "open"
    assert ending([*told, FINISHED], 2).title == "The run is finished, after 2 rounds."
    early = {"event": "stopped_early", "round": 4, "best": 3}
    assert "no validation score was better than that of round 3" in ending([*told, early, FINISHED], 0).title


@pytest.mark.parametrize("end", [FINISHED, *(last for last, kind in FAILURES if kind != "open")])
def test_a_run_that_is_resumed_or_extended_is_open_while_it_waits_for_nodes(end: dict[str, Any]) -> None:
    listening = {"event": "listening", "address": "127.0.0.1:1"}
    told = events(listening, STARTED, end, listening)
    assert ending(told, 2, lives=True).title == "The run goes on as soon as its nodes are back."
    assert ending(told, 2, lives=False).title == "The top server ended without a word, after 2 rounds."
    assert ending(told, 2).kind == "open"
    assert ending([*told, {**STARTED, "event": "run_resumed"}], 2, lives=True).title == "The run is playing."
    assert ending([*told, end], 2, lives=True) == ending([end], 2, lives=True)


def test_a_run_that_has_never_begun_waits_for_nodes() -> None:
    told = events({"event": "listening", "address": "127.0.0.1:1"})
    assert ending(told, 0, lives=True).title == "The run has not begun: it waits for nodes."
    assert ending([], 0) == ending(told, 0)


def test_the_same_trouble_of_the_same_client_is_one_row_with_its_last_reason() -> None:
    again = {**SKIPPED, "round": 4, "reason": "it was too slow"}
    left = {"event": "node_left", "node": "b", "reason": "no answer"}
    gone = {"event": "node_left", "node": "a", "reason": "dismissed"}
    found = troubles(events(SKIPPED, left, again, gone), {1: "Bonn"})
    assert [(one.who, one.what, one.times, one.rounds, one.reason) for one in found] == [
        ("client 1 (Bonn)", "was skipped", 2, "1 to 4", "it was too slow"),
        ("node b", "left", 1, "", "no answer"),
    ]


@pytest.mark.parametrize("kind", TROUBLES)
@pytest.mark.parametrize("damage", [{}, {"round": "x", "client": "y", "clients": "z", "group": None, "reason": 3}])
def test_no_event_of_a_trouble_is_too_odd_for_the_report(kind: str, damage: dict[str, Any], tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", STARTED, {"event": kind, "differs_from": "x", **damage})
    (found,) = facts(run).troubles
    assert found.who
    assert found.what == TROUBLES[kind]


def test_every_kind_of_trouble_is_an_event_that_runs_record() -> None:
    page = (Path(__file__).parents[3] / "docs" / "events.md").read_text(encoding="utf-8")
    assert [kind for kind in TROUBLES if f"| `{kind}` |" not in page] == []


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", STARTED, rows=[{**two_rounds()[0], "seconds": "long"}])
    with pytest.raises(DataError, match=r"the record in .* is damaged"):
        facts(run)


def runs(tmp_path: Path) -> list[Facts]:
    found = []
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            name = f"{rate}-{seed}"
            rows = two_rounds(0.4 + rate + seed / 10)
            options = {"task_option": {"seed": str(seed)}, "listen": f"127.0.0.1:{9000 + seed}"}
            recorded(tmp_path / name, STARTED, FINISHED, rows=rows, learning_rate=rate, seed=seed, **options)
            found.append(facts(tmp_path / name))
    return found


def test_runs_that_differ_only_in_their_seeds_are_one_variant(tmp_path: Path) -> None:
    found = variants(runs(tmp_path))
    assert [(one.name, len(one.runs)) for one in found] == [("--learning-rate 0.1", 2), ("--learning-rate 0.2", 2)]
    assert rows_of(found)[0][:4] == ("--learning-rate 0.1", "0, 1", "2", "55.00 %, from 50.00 % to 60.00 %")
    assert [one.name for one in variants(runs(tmp_path / "again")[:2])] == ["all runs"]


def test_several_runs_are_compared_in_table_and_charts(tmp_path: Path) -> None:
    runs(tmp_path)
    folder = tmp_path / "pictures"
    write([tmp_path / name for name in ("0.1-0", "0.1-1", "0.2-0")], tmp_path / "all.html", folder)
    text = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert "<h2>Compared</h2>" in text
    assert "--learning-rate 0.2" in text
    names = {path.stem for path in folder.iterdir()}
    assert {"compared-score", "compared-loss", "run-1-score", "run-3-loss"} <= names


def test_many_variants_look_different_and_their_names_stand_below_the_curves(tmp_path: Path) -> None:
    rates = [0.01 * number for number in range(1, 13)]
    runs = [recorded(tmp_path / f"{rate}", STARTED, rows=two_rounds(), learning_rate=rate) for rate in rates]
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    charts._bands(axes, variants([facts(run) for run in runs]), lambda one: one.scores, "score", 1)
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 12
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 12
    figure.draw_without_rendering()
    assert legend.get_window_extent().y1 <= axes.get_window_extent().y0


@given(st.lists(st.dictionaries(st.integers(1, 9), st.floats(-5, 5)), max_size=4))
def test_a_band_has_the_rounds_that_all_curves_have_and_holds_their_mean(curves: list[dict[int, float]]) -> None:
    found = band(curves)
    for number, mean, least, most in zip(found.rounds, found.mean, found.least, found.most, strict=True):
        values = [curve[number] for curve in curves]
        assert (least, most) == (min(values), max(values))
        assert least - 1e-9 <= mean <= most + 1e-9


def test_pairs_are_counted_in_groups_that_trained_where_the_history_has_no_partition(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", STARTED, trained(1, [0, 1], [2]), trained(2, [0, 1, 2]), rows=two_rounds())
    found = together(teams_of(RunDirectory(run)))
    assert found is not None
    clients, pairs = found
    assert clients == [0, 1, 2]
    np.testing.assert_array_equal(pairs, [[0, 2, 1], [2, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("words", "kind", "what"),
    [
        (["nowhere"], DataError, "nowhere/events.jsonl cannot be read"),
        (["{run}", "--out", "no/such/folder.html"], ConfigError, "no/such/folder.html cannot be written"),
        (["{run}", "--pictures", "{run}/config.toml"], ConfigError, "cannot be written"),
    ],
)
def test_a_mistake_is_told(
    words: list[str], kind: type[UserError], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = recorded(tmp_path / "run", STARTED, FINISHED, rows=two_rounds())
    result = CliRunner().invoke(app, ["report", *(word.format(run=run) for word in words)])
    assert isinstance(result.exception, kind)
    assert what in str(result.exception)


def test_a_report_that_finds_no_room_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_all", full)
    run = recorded(tmp_path / "run", STARTED, FINISHED, rows=two_rounds())
    with pytest.raises(ConfigError, match=r"report.html cannot be written: No space left on device; make room"):
        write([run], run / "report.html")
    assert not (run / "report.html").exists()


def test_a_config_that_is_damaged_is_to_be_restored_and_no_flag_is_blamed(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", STARTED, FINISHED, rows=two_rounds())
    (run / "config.toml").write_bytes(b"\xff")
    with pytest.raises(DataError) as caught:
        write([run], run / "report.html")
    assert (
        str(caught.value) == f"{run}/config.toml cannot be read: it is no text in UTF-8; restore the file from a copy"
    )


def test_the_command_writes_into_the_directory_of_one_run_and_here_for_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        recorded(tmp_path / name, STARTED, FINISHED, rows=two_rounds())
    assert CliRunner().invoke(app, ["report", "a"]).output == "a/report.html\n"
    assert CliRunner().invoke(app, ["report", "a", "b"]).output == "report.html\n"
    assert (tmp_path / "a" / "report.html").is_file()
    assert (tmp_path / "report.html").is_file()
