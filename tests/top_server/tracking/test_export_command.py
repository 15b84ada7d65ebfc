"""The command `top-server export`, and the flags of trackers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedgsp.settings.files import dump
from fedgsp.settings.flags import settled
from fedgsp.settings.run import RunConfig, may_change
from tests.top_server.tracking.records import finished, record
from top_server import cli
from top_server.choosing import NAMES


def end(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["top-server", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_a_recorded_run_is_exported_as_often_as_one_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(tmp_path, finished(1)).path
    for _ in range(2):
        words = ["export", str(run), "--to", f"tensorboard={tmp_path / 'board'}", "--option", "clients=false"]
        assert end(words, monkeypatch) == 0
    assert len(list((tmp_path / "board" / "run").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--to", "tensorbord"], 2, "error: --to cannot be 'tensorbord'; did you mean 'tensorboard'?"),
        (["--to", "tensorboard", "--option", "two=2"], 2, "error: tracker tensorboard has no option 'two'"),
        (["--to", "tensorboard", "--option", "two"], 2, "error: --option 'two' is not an option"),
        (["--to", "tensorboard=/dev/null"], 5, "error: tracker tensorboard fails: NotADirectoryError"),
        (["--to", "tensorboard"], 4, "events.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_exported_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    told: str,
) -> None:
    run = tmp_path if code == 4 else record(tmp_path, finished(1)).path
    assert end(["export", str(run), *words], monkeypatch) == code
    errors = capsys.readouterr().err
    assert told in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--track", "tensorbord"], "--track cannot be 'tensorbord'"),
        (["--track", "mlflow"], "write mlflow=URI"),
        (["--metrics", "here"], "--metrics: 'here' is not an address"),
        (["--metrics", "0.0.0.0:9100", "--insecure"], "is not on this machine's loopback, and there is no TLS"),
        (["--unhealthy-after", "0"], "--unhealthy-after is 0.0; give a number above 0"),
    ],
)
def test_a_mistake_in_a_flag_is_told_before_a_directory_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    assert end(["--run-dir", str(tmp_path / "run"), *words], monkeypatch) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_these_settings_are_kept_in_config_toml_and_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    told = RunConfig(
        track=("tensorboard", "mlflow=http://h"), track_option={"mlflow.clients": "no"}, metrics="[::1]:1"
    )
    (tmp_path / "config.toml").write_text(dump(told))
    assert settled(RunConfig, tmp_path / "config.toml", {}, NAMES) == told
    assert {"track", "track_option", "metrics", "unhealthy_after"} <= may_change()
