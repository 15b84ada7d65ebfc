"""Where processes find a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import TaskError
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs.source import place_of, source_of


def test_a_class_of_a_module_keeps_its_name_and_is_imported_from_its_folder(tmp_path: Path) -> None:
    source = source_of(Digits, tmp_path)
    source.write()
    assert source.name == "fedgsp_node.tasks.digits:Digits"
    assert source.folder == Path(__file__).resolve().parents[2]
    assert list(tmp_path.iterdir()) == []


def test_the_same_source_has_the_same_name_and_another_source_another(cells: Any, tmp_path: Path) -> None:
    names = []
    for classes in (2, 2, 3):
        module = cells(f"class Mine(Task):\n    num_classes = {classes}")
        source = source_of(module.Mine, tmp_path / "run")
        assert source.folder == tmp_path / "run"
        names.append(source.name)
        file = tmp_path / "run" / f"{source.name.partition(':')[0]}.py"
        assert file.is_file() == (source.name in names[:-1])
        source.write()
        assert file.read_text() == source.text
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("task", [3, [], lambda: None])
def test_what_is_no_class_of_a_module_is_refused(task: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is no class of a module"):
        source_of(task, tmp_path)


def test_a_record_decides_on_no_folder_for_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, here, elsewhere = (tmp_path / name for name in ("run", "here", "elsewhere"))
    for folder, name in ((run, "both"), (here, "both"), (here, "mine"), (elsewhere, "theirs")):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").touch()
    monkeypatch.syspath_prepend(here)
    found = {"both": run, "mine": here, "theirs": run, "sys": run, "json": run, "__main__": run, str(elsewhere): run}
    assert {name: place_of(f"{name}:Mine", run) for name in found} == found
    assert place_of("mine", run) == place_of("", run) == run
