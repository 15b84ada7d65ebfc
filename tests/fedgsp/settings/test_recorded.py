"""The settings of a recorded run are whole, or an error: a part of them would be read as defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.errors import DataError
from fedgsp.settings.files import dump
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig


def test_what_a_run_has_written_is_read(tmp_path: Path) -> None:
    settings = RunConfig(rounds=7, task="blobs")
    (tmp_path / "config.toml").write_text(dump(settings))
    assert load_recorded(tmp_path / "config.toml") == settings


TEXT = dump(RunConfig(task="blobs"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, ": there is no such file"),
        (b"", " lacks task, task_option"),
        (b"# Repeat this run\n", " lacks task"),
        (TEXT[: TEXT.index("\n[") + 1].encode(), " lacks task_option"),
        (TEXT[: TEXT.index("task =") + 7].encode(), " is not TOML"),
        (TEXT.encode() + b"\xff", " cannot be read: it is no text"),
        (TEXT.replace("seed", "seeds").encode(), ": there is no setting 'seeds'"),
    ],
)
def test_a_file_that_is_missing_empty_or_damaged_is_named_with_the_code_of_a_record(
    tmp_path: Path, text: bytes | None, what: str
) -> None:
    path = tmp_path / "config.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(DataError) as caught:
        load_recorded(path)
    assert str(caught.value).startswith(f"{path}{what}")
    assert str(caught.value).endswith("; restore the file from a copy")
