"""A sweep: which runs it plays and refuses, and what it says of those that fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from benchmarks import sweep
from fedgsp.errors import ConfigError
from tests.support.finished_runs import ended, finished

RUN = {"scheme": "hcct", "task": "digits", "rounds": 2, "clients": 2, "local_nodes": 1}


def experiment(folder: Path, variants: dict[str, Any], **run: Any) -> Path:
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps({"seeds": [0], "run": {**RUN, **run}, "variants": variants}), encoding="utf-8")
    return path


class Played:
    """In place of the processes of runs: notes their command and the settings that they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failing: str) -> None:
        self.settings: dict[str, dict[str, Any]] = {}
        self._failing = failing
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        config, directory = (Path(command[command.index(name) + 1]) for name in ("--config", "--run-dir"))
        if directory.name in self._failing:
            return subprocess.CompletedProcess(command, 6)
        self.settings[directory.name] = tomllib.loads(config.read_text(encoding="utf-8"))
        finished(directory, self.settings[directory.name])
        return subprocess.CompletedProcess(command, 0)


def swept(monkeypatch: pytest.MonkeyPatch, *words: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep.py", *map(str, words)])
    sweep.main()


def test_variants_with_a_dot_in_their_names_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Played(monkeypatch)
    variants = {f"0.5-alpha{alpha}": {"grouping_option": {"alpha": alpha}} for alpha in ("1", "10")}
    swept(monkeypatch, experiment(tmp_path, variants), "--out", tmp_path / "out")
    for alpha in ("1", "10"):
        config = tmp_path / "out" / f"0.5-alpha{alpha}-0.toml"
        assert tomllib.loads(config.read_text(encoding="utf-8"))["grouping_option"] == {"alpha": alpha}
        assert config.with_name(f"0.5-alpha{alpha}-0.log").exists()


def test_the_tasks_of_a_job_array_play_one_run_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(monkeypatch)
    asked = [experiment(tmp_path, {"a": {}, "b": {}}), "--out", tmp_path, "--seeds", "0,1", "--only"]
    for number in range(4):
        swept(monkeypatch, *asked, number)
    assert list(played.settings) == ["a-0", "b-0", "a-1", "b-1"]
    assert "|" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--only is 4, and there are 4 runs; give 0 to 3"):
        swept(monkeypatch, *asked, 4)


def test_when_runs_fail_the_others_go_on_and_the_failed_are_named_with_their_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(monkeypatch, "0.5-0", "b-1")
    with pytest.raises(SystemExit) as caught:
        swept(
            monkeypatch,
            experiment(tmp_path, {"0.5": {}, "b": {}}),
            "--out",
            tmp_path,
            "--seeds",
            "0,1",
        )
    assert list(played.settings) == ["b-0", "0.5-1"]
    # text as the code of a SystemExit goes to stderr, with exit code 1
    assert str(caught.value) == (
        "2 runs failed, and are not in the table:\n"
        f"  0.5-0: see {tmp_path / '0.5-0.log'}\n  b-1: see {tmp_path / 'b-1.log'}"
    )
    assert "| b | 1 | 50.00 | 50.00 |" in capsys.readouterr().out


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = experiment(tmp_path, {"a": {}}, local_run="{out}/local-{seed}", task_option={"clients": "2"})
    out, moved = tmp_path / "out", tmp_path / "moved"
    swept_first = Played(monkeypatch)
    swept(monkeypatch, path, "--out", out, "--task-option", "data=here/digits.npz")
    assert list(swept_first.settings) == ["a-0"]
    out.rename(moved)
    # files may lie elsewhere, and the processes be others
    path = experiment(
        tmp_path,
        {"a": {}},
        local_run="{out}/local-{seed}",
        task_option={"clients": 2},
        local_nodes=2,
        listen="127.0.0.1:0",
    )
    again = Played(monkeypatch)
    swept(monkeypatch, path, "--out", moved, "--task-option", "data=there/digits.npz")
    assert again.settings == {}


@pytest.mark.parametrize(("rounds", "resumed"), [("2", True), ("3", False)])
def test_an_unfinished_run_is_resumed_if_it_has_the_same_settings(
    rounds: str, resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = experiment(tmp_path, {"a": {}})
    Played(monkeypatch)
    swept(monkeypatch, path, "--out", tmp_path)
    (tmp_path / "a-0" / "events.jsonl").unlink()
    (tmp_path / "a-0" / "state" / "round-0001").mkdir(parents=True)
    commands: list[list[str]] = []

    def played(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        (tmp_path / "a-0").mkdir(exist_ok=True)
        ended(tmp_path / "a-0")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", played)
    monkeypatch.setattr("benchmarks.sweep_report.tell", lambda *_: None)
    swept(monkeypatch, path, "--out", tmp_path, "--rounds", rounds)
    ((*_, name, directory),) = commands
    assert (name, Path(directory)) == ("--resume" if resumed else "--run-dir", tmp_path / "a-0")
    assert (tmp_path / "a-0" / "state").exists() == resumed


@pytest.mark.parametrize(
    ("changes", "words", "what"),
    [
        ({}, ["--rounds", "3"], "--rounds 2, and 3 is asked for"),
        (
            {},
            ["--task-option", "data=other.npz"],
            "--task-option {'seed': '0'}, and {'seed': '0', 'data': 'other.npz'}",
        ),
        ({"learning_rate": 1}, [], "--learning-rate 0.01, and 1.0 is asked for"),
        ({"training": "ditto"}, [], "--training None, and ditto is asked for"),
        ({"clients": 3}, [], "--clients 2, and 3 is asked for"),
        ({"wire_dtype": "bfloat16"}, [], "--wire-dtype exact, and bfloat16 is asked for"),
        ({"local_run": "{out}/fast-{seed}"}, [], "--local-run None, and"),
    ],
)
def test_a_run_that_was_finished_with_other_settings_is_refused_before_any_is_played(
    changes: dict[str, Any], words: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Played(monkeypatch)
    swept(monkeypatch, experiment(tmp_path, {"old": {}}), "--out", tmp_path)
    again = Played(monkeypatch)
    with pytest.raises(SystemExit, match=r"sweep\.py: .*old-0 was run with") as caught:
        swept(monkeypatch, experiment(tmp_path, {"new": {}, "old": changes}), "--out", tmp_path, *words)
    assert what in str(caught.value)
    assert str(caught.value).endswith("remove that directory, ask for what it has, or give another --out")
    assert again.settings == {}
    # what is there is told all the same
    swept(monkeypatch, experiment(tmp_path, {"old": changes}), "--out", tmp_path, *words, "--table")


def test_settings_that_a_finished_run_chose_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Played(monkeypatch)
    one = {"a": {"scheme": "fedavg"}}
    swept(monkeypatch, experiment(tmp_path, one), "--out", tmp_path)
    config = tmp_path / "a-0" / "config.toml"
    config.write_text(f"sampling_rate = 1.0\n{config.read_text()}")
    swept(monkeypatch, experiment(tmp_path, one), "--out", tmp_path)
    with pytest.raises(SystemExit, match=r"was run with --sampling-rate 1\.0, and 0\.5 is asked for"):
        swept(monkeypatch, experiment(tmp_path, {"a": {"scheme": "fedavg", "sampling_rate": 0.5}}), "--out", tmp_path)


@pytest.mark.parametrize(
    ("text", "words", "what"),
    [
        (None, [], "cannot be read"),
        ("not TOML", [], "cannot be read"),
        ("seeds = [0]\n[variants.a]", [], "has no `run`, so it is no experiment"),
        ("seeds = [0]\n[run]\ncolour = 1\n[variants.a]", [], "there is no setting 'colour'"),
        ("seeds = [0]\n[run]\n[variants.a]", ["--variants", "b"], "there is no variant 'b'; there are: a"),
        ("seeds = [0]\n[run]\n[variants.a]", ["--task-option", "data"], "--task-option 'data' is not an option"),
        ("seeds = [0]\n[run]\n[variants.'(1,2)']", ["--keep"], "'(1,2)' is not a name"),
        ("seeds = [0]\n[run]\n[variants.a]", ["--keep", "--table"], "--keep and --table do not go together"),
        ("seeds = [0]\n[run]\n[variants.a]", ["--weights"], "--weights keeps models beside summaries"),
        ("seeds = [0]\n[run]\n[variants.a]", ["--picture", "no/such.png"], "--picture no/such.png cannot be written"),
    ],
)
def test_a_mistake_is_one_line(
    text: str | None, words: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    played = Played(monkeypatch)
    with pytest.raises(SystemExit) as caught:
        swept(monkeypatch, tmp_path / "experiment.toml", "--out", tmp_path / "out", *words)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert played.settings == {}


def test_a_run_whose_settings_cannot_be_read_is_refused(tmp_path: Path) -> None:
    finished(tmp_path / "a", RUN)
    (tmp_path / "a" / "config.toml").write_text("colour = 1")
    with pytest.raises(ConfigError, match="there is no setting 'colour'"):
        sweep.check(RUN, tmp_path / "a")


def test_finished_runs_are_kept_under_the_names_of_experiment_and_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    Played(monkeypatch, "b-0")
    monkeypatch.setattr(sweep, "code_here", lambda began=None: "code")
    monkeypatch.setattr(sweep, "keep", lambda *words, weights: kept.append((*words, weights)))
    monkeypatch.setattr(sweep, "is_kept", lambda *words: words[:3] in [one[:3] for one in kept])
    for _ in range(2):  # a run that is kept stays as it was kept
        with pytest.raises(SystemExit, match="1 runs failed"):
            swept(monkeypatch, experiment(tmp_path, {"a": {}, "b": {}}), "--out", tmp_path, "--keep")
        assert kept == [(tmp_path / "a-0", "experiment", "a", "code", False)]


def test_weights_are_kept_with_a_summary_or_beside_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    Played(monkeypatch)
    monkeypatch.setattr(sweep, "code_here", lambda began=None: "code")
    monkeypatch.setattr(sweep, "keep", lambda *words, weights: kept.append(f"{words[2]}, {weights}"))
    monkeypatch.setattr(sweep, "keep_models", lambda *words: kept.append(f"{words[2]}, only models"))
    monkeypatch.setattr(sweep, "is_kept", lambda *words: words[2] == "b")
    swept(monkeypatch, experiment(tmp_path, {"a": {}, "b": {}}), "--out", tmp_path, "--keep", "--weights")
    assert kept == ["a, True", "b, only models"]


def test_nothing_is_played_to_be_kept_if_the_code_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dirty(began: object = None) -> None:
        raise ConfigError("the code is changed", "commit it")

    played = Played(monkeypatch)
    monkeypatch.setattr(sweep, "code_here", dirty)
    with pytest.raises(SystemExit, match=r"sweep\.py: the code is changed"):
        swept(monkeypatch, experiment(tmp_path, {"a": {}}), "--out", tmp_path, "--keep")
    assert played.settings == {}


#: A sweep whose program writes into the pipe `said`, also when its lifeline ends.
OF_ONE_THAT_WAITS = """
import sys
from benchmarks import sweep
program = "import sys; say = open('said', 'w', 1).write; say('begun\\\\n'); sys.stdin.read(); say('ended\\\\n')"
sweep.PROGRAM = (sys.executable, "-c", program)
sweep.main()
"""


def test_a_run_ends_with_its_sweep_even_if_that_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "said")
    words = [str(experiment(tmp_path, {"a": {}})), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", OF_ONE_THAT_WAITS, *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE) as sweeping,
        (tmp_path / "said").open() as said,
    ):
        assert said.readline() == "begun\n"
        sweeping.kill()
        assert said.readline() == "ended\n"
