"""A task is refused if nodes, which look last into its folder, would import other modules than this process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgsp.errors import TaskError
from fedgsp_runs.source import Source, source_of
from tests.support.user_modules import started_in

TASK = "def make(): ...\n"
OF_SPACE = {"of_two": f"from spaces.sizes import WIDTH\n{TASK}", "spaces/sizes": "WIDTH = 64"}
LATER = {"of_two": "def make():\n    from sizes import WIDTH\n", "sizes": ""}


class Folders:
    """The folder of a script, one on the import path of all processes, and the working directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.script, self.installed, self.here = (tmp_path / name for name in ("script", "installed", "here"))
        for folder in (self.script, self.installed, self.here):
            folder.mkdir()

    def found(self, module: str = "of_two") -> Source:
        """Where nodes find the task of a module."""
        importlib.invalidate_caches()
        return source_of(importlib.import_module(module).make, self.script / "run")

    def refused(self, module: str, other: Path) -> None:
        told = f"the module {module!r} of the folder {self.script} has the name of another module"
        with pytest.raises(TaskError, match=f"task 'of_two:make': {told} .*{other}") as caught:
            self.found()
        assert caught.value.remedy == "rename the file, or the folder"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """As a script has them: its own folder comes first."""
    folders = Folders(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(folders.installed)]))
    with started_in(folders.installed), started_in(folders.script), started_in(folders.here):
        sys.path[:] = [str(folders.script), *sys.path, str(folders.installed)]
        yield folders


def write(folder: Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("modules", "module"),
    [
        ({"of_two": f"import sizes\n{TASK}", "sizes": ""}, "sizes"),
        ({"of_two": f"import sizes\n{TASK}", "sizes/__init__": ""}, "sizes"),
        ({"of_two": f"exec('import sizes')\n{TASK}", "sizes": ""}, "sizes"),
        (OF_SPACE, "spaces.sizes"),
        (LATER, "sizes"),
        ({"of_two": TASK}, "of_two"),
    ],
    ids=["module", "package", "unreadable", "without __init__", "later", "its own"],
)
def test_a_module_that_nodes_find_elsewhere_is_refused(modules: dict[str, str], module: str, folders: Folders) -> None:
    write(folders.script, modules)
    folders.found()
    other = module.replace(".", "/")
    write(folders.installed, {other: ""})
    folders.refused(module, folders.installed / f"{other}.py")


def test_a_module_with_a_name_of_the_standard_library_is_refused_if_this_process_took_it(folders: Folders) -> None:
    write(folders.script, {"of_two": f"import colorsys\n{TASK}", "colorsys": ""})
    folders.refused("colorsys", Path("colorsys.py"))


def test_a_module_of_an_installed_task_that_only_this_process_finds_elsewhere_is_refused(folders: Folders) -> None:
    write(folders.installed, {"of_two": f"import sizes\n{TASK}", "sizes": ""})
    write(folders.script, {"sizes": ""})
    folders.refused("sizes", folders.installed / "sizes.py")


def test_the_working_directory_comes_after_the_folder_of_a_task_but_before_all_others(folders: Folders) -> None:
    write(folders.script, LATER)
    write(folders.here, {"sizes": ""})
    folders.found()
    write(folders.script, {"elsewhere/of_one": LATER["of_two"]})
    sys.path.insert(1, str(folders.script / "elsewhere"))
    with pytest.raises(TaskError, match="'of_one:make': the module 'sizes' of the folder"):
        folders.found("of_one")


def test_modules_that_nobody_imports_may_have_any_name(folders: Folders) -> None:
    names = ("test", "utils", "torch", "other")
    write(folders.script, {**LATER, **dict.fromkeys(names, "raise AssertionError")})
    write(folders.installed, dict.fromkeys(names, "raise AssertionError"))
    assert folders.found() == Source("of_two:make", folders.script)


def test_a_module_that_this_process_has_found_elsewhere_too_is_not_refused(folders: Folders) -> None:
    write(folders.script, LATER)
    write(folders.installed, {"sizes": ""})
    sys.path.append(sys.path.pop(0))
    folders.found()


def test_a_task_of_fedgsp_imports_nothing_from_the_folder_of_a_script(folders: Folders) -> None:
    write(folders.script, {"sizes": ""})
    write(folders.installed, {"sizes": ""})
    importlib.import_module("sizes")
    assert source_of("digits", folders.here) == Source("digits", None)
    with pytest.raises(TaskError, match="task 'any:make': the module 'sizes'"):
        source_of("any:make", folders.here)
