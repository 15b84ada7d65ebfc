"""Runs to which clients come while they go on: what is played, and what is said when it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from benchmarks import arrivals, late_client, newcomers
from fedgsp.errors import RunError
from tests.support.finished_runs import finished, history

SETTINGS: dict[str, Any] = {
    "scheme": "global",
    "task": "digits",
    "task_option": {"clients": "4"},
    "rounds": 1,
    "listen": "127.0.0.1:0",
    "min_clients": 4,
}
#: What the top server refuses at once.
WRONG = {**SETTINGS, "grouping_option": {"colour": "red"}}


def called(monkeypatch: pytest.MonkeyPatch, module: Any, *words: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
    module.main()


def nobody(_event: dict[str, Any]) -> list[list[int]]:
    return []


# --- playing


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nodes_start_as_events_say_and_what_was_cut_off_is_played_again(tmp_path: Path) -> None:
    directory = tmp_path / "0.5-run"
    directory.mkdir()
    (directory / "config.toml").touch()  # cut off
    kinds: list[str] = []

    def coming(event: dict[str, Any]) -> list[list[int]]:
        kinds.append(event["event"])
        return [[0, 2], [1, 3]] if event["event"] == "listening" else []

    arrivals.play(SETTINGS, directory, coming)
    assert (directory / "summary.json").exists()
    assert kinds[-1] == "run_finished"
    joined = [json.loads(line) for line in (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["clients"] for event in joined if event["event"] == "node_joined"] == [2, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0.5-run",
        "0.5-run.node-0.log",
        "0.5-run.node-1.log",
        "0.5-run.toml",
    ]
    kinds.clear()
    arrivals.play(SETTINGS, directory, coming)
    assert kinds == []


def test_a_top_server_that_fails_is_told_with_its_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match=r"the top server of .*run ended with code 2; .* the nodes in .*run\.node"):
        arrivals.play(WRONG, tmp_path / "run", nobody)
    assert "colour" in capfd.readouterr().err


# --- newcomers.py


def test_newcomers_ends_with_one_line_if_a_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"newcomers\.py: the top server of .* ended with code 2"):
        called(monkeypatch, newcomers, "--out", tmp_path, "--data", "none.npz", "--alpha", "red")
    assert "alpha" in capfd.readouterr().err


def test_newcomers_come_every_so_many_rounds_until_there_are_twenty(tmp_path: Path) -> None:
    class Given:
        every, rounds, task = 2, 12, "cifar10"

    coming = newcomers.coming(Given(), 4)  # type: ignore[arg-type]
    assert [list(clients) for clients in coming({"event": "listening"})] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    came = {
        number: [list(clients) for clients in coming({"event": "round_finished", "round": number})]
        for number in range(1, 13)
    }
    assert {number: nodes for number, nodes in came.items() if nodes} == {
        2: [[10, 11, 12, 13]],
        4: [[14, 15, 16, 17]],
        6: [[18, 19]],
    }
    assert not any(newcomers.coming(Given(), 0)({"event": "round_finished", "round": 2}))  # type: ignore[arg-type]


def test_one_client_of_each_domain_comes_after_the_other() -> None:
    class Given:
        every, rounds, task = 2, 12, "digit_domains"

    coming = newcomers.coming(Given(), 5)  # type: ignore[arg-type]
    assert coming({"event": "listening"}) == [[0, 4, 8, 12, 16], [1, 5, 9, 13, 17]]
    assert coming({"event": "round_finished", "round": 2}) == [[2, 6, 10, 14, 18]]
    assert sorted(newcomers.CASES["digit_domains"].order) == list(range(newcomers.MOST))


# --- late_client.py

RUN = {
    "task": "digits",
    "batch_size": 8,
    "learning_rate": 0.1,
    "learning_rate_decay": 0.9,
    "local_epochs": 3,
    "training": "ditto",
    "training_option": {"lambda": "0.5"},
    "grouping_option": {"c": "5"},
    "profile_option": {"exchanges": "20"},
    "task_option": {"clients": "3"},
    "clients": 3,
    "local_nodes": 2,
    "local_run": "{out}/local-{seed}",
}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(tomli_w.dumps({"seeds": [0], "run": RUN, "variants": {"a": {}}}), encoding="utf-8")
    return path


def played(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[Any]:
    """In place of a run: leaves a history, and notes what it was to be."""
    noted: list[Any] = []

    def play(settings: dict[str, Any], directory: Path, coming: Any) -> None:
        noted.extend([settings, coming])
        finished(directory, settings)
        history(directory, rows)

    monkeypatch.setattr(late_client, "play", play)
    return noted


def test_a_late_client_comes_to_a_run_with_all_settings_of_the_experiment(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {"round": 1, "partition": [[0], [2]], "accuracy_per_client": {"0": 0.5, "2": 0.5}}
    after = {"round": 4, "partition": [[0], [1, 2]], "accuracy_per_client": {"0": 0.5, "1": 0.75, "2": 1.0}}
    noted = played(monkeypatch, [before, after])
    given = ["--grouping-option", "c=6", "--task-option", "data=x"]
    called(monkeypatch, late_client, experiment, "--out", tmp_path, "--late", 1, "--at", 2, "--rounds", 4, *given)
    settings, coming = noted
    kept = (
        "task",
        "batch_size",
        "learning_rate",
        "learning_rate_decay",
        "local_epochs",
        "training",
        "training_option",
    )
    assert {name: settings.pop(name) for name in kept} == {name: RUN[name] for name in kept}
    assert settings == {
        "scheme": "fedcollab",
        "rounds": 4,
        "evaluate_every": 5,
        "after_arrivals": "all",
        "seed": 0,
        "task_option": {"clients": "3", "seed": "0", "data": "x"},
        "grouping_option": {"c": "6"},
        "profile_option": {"exchanges": "20"},
        "listen": "127.0.0.1:0",
        "min_clients": 2,
    }
    assert coming({"event": "listening"}) == [[0], [2]]
    came = [coming({"event": "round_finished", "round": number}) for number in (1, 2, 3)]
    assert came == [[], [[1]], []]
    assert capsys.readouterr().out.splitlines() == [
        "client 1 joined in round 4: [1, 2]",
        "accuracy of client 1 after the last round 75.00 %, mean of the others 75.00 %",
    ]
    assert (tmp_path / "late.png").exists()


@pytest.mark.parametrize("partition", [[[0], [1]], [[0], [1, 2]]])
def test_a_client_that_never_joined_or_was_not_evaluated_is_told(
    partition: list[list[int]], experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, [{"round": 4, "partition": partition, "accuracy_per_client": {"0": 0.5, "1": 0.5}}])
    with pytest.raises(SystemExit, match=r"late_client\.py: client 2 never joined, or was never evaluated") as caught:
        called(monkeypatch, late_client, experiment, "--out", tmp_path, "--late", 2, "--at", 2, "--rounds", 4)
    assert "its node started after round 2 of 4; give more --rounds, or see the last of" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--late", "3"], "--late is 3, and the experiment has 3 clients; name one of two or more"),
        (["--at", "100"], "--at is 100; name a round before the last, which is 100"),
        (["--at", "0"], "--at is 0; name a round before the last"),
        (["--task-option", "data"], "--task-option 'data' is not an option"),
    ],
)
def test_a_mistake_is_told_before_anything_is_played(
    words: list[str], what: str, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = played(monkeypatch, [])
    with pytest.raises(SystemExit) as caught:
        called(monkeypatch, late_client, experiment, "--out", tmp_path, *words)
    assert what in str(caught.value)
    assert noted == []
