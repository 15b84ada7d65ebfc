"""Wrong arguments are refused by name before anything is done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run, extend, resume
from tests.support.run_directories import trained, write


def test_what_is_no_path_and_no_client_is_named(tmp_path: Path) -> None:
    wrongs: list[Any] = [None, 3, "a\0"]
    for wrong in wrongs:
        shown = re.escape(repr(wrong))
        with pytest.raises(ConfigError, match=rf"`directory` is {shown} .*; give the path of a directory"):
            Run(wrong)
        with pytest.raises(ConfigError, match=rf"`run_dir` is {shown} "):
            resume(wrong)
    found = Run(
        write(tmp_path / "run", Digits(2), {"final": (trained(Digits(2), 0), ())}, task_option={"clients": "2"})
    )
    kind: Any = Digits
    with pytest.raises(ConfigError, match=r"`task` is <class .*; give an instance of the run's task, or its name"):
        Run(found.directory, task=kind)
    client: Any = "a"
    with pytest.raises(ConfigError, match="`client` is 'a'; give the number of a client"):
        found.model(client=client)
    counts: list[Any] = ["five", 2.5, True]
    for rounds in counts:
        with pytest.raises(ConfigError, match=r"`rounds` is .*; give the number of all rounds of the run"):
            extend(found.directory, rounds)
    (tmp_path / "run" / "history.jsonl").write_text('{"round": 1, "accuracy": 0.5, "loss": 1.0}\n')
    with pytest.raises(ConfigError, match=r"^`out` /nowhere/x.png cannot be written"):
        found.picture("/nowhere/x.png")


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_what_is_no_run_is_refused_at_once(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run; give the directory of a run"):
        Run(tmp_path / folder)


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        resume(tmp_path / "none")
