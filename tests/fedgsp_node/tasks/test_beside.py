"""Modules beside a task come last on the import path of nodes: one with the name of an installed one is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedgsp.errors import TaskError
from fedgsp.tasks import FOLDER_VARIABLE
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.beside import check_found, imports_of, modules_beside, origin_of
from tests.support.user_modules import started_in

TASK = """
{first}
from fedgsp_node.tasks.digits import Digits


class Two(Digits):
    def __init__(self) -> None:
        super().__init__(2)

    def model(self):
        {later}
        return super().model()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a task."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def write(folder: Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def load(folder: Path, named: bool, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads the task of a folder, which is the working directory or is named by the caller of the run."""
    if named:
        monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    with started_in(elsewhere if named else folder):
        load_task("of_two:Two", {})


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("modules", "taken"),
    [
        ({"of_two": TASK.format(first="from sizes import WIDTH", later="")}, "sizes"),
        ({"of_two": TASK.format(first="", later="from sizes import WIDTH")}, "sizes"),
        ({"of_two": TASK.format(first="", later="import importlib; importlib.import_module('sizes')")}, "sizes"),
        ({"of_two": TASK.format(first="import other", later=""), "other": "def f():\n    import sizes"}, "sizes"),
        (
            {
                "of_two": TASK.format(first="from layers import dense", later=""),
                "layers/__init__": "from .inner import dense",
                "layers/inner": "import sizes\ndense = 3",
            },
            "sizes",
        ),
        ({"of_two": TASK.format(first="from spaces.sizes import WIDTH", later="")}, "spaces.sizes"),
    ],
    ids=["at its head", "in a method", "by a text", "of another", "in a package", "without __init__"],
)
def test_a_module_that_the_task_imports_is_refused_if_nodes_find_another(
    modules: dict[str, str],
    taken: str,
    named: bool,
    project: Path,
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = taken.replace(".", "/")
    write(project, {**modules, file: "WIDTH = 64"})
    write(installed, {file: "WIDTH = 3"})
    told = f"the module {taken!r} of the folder {project} has the name of another module ({installed / file}.py)"
    with pytest.raises(TaskError) as caught:
        load(project, named, tmp_path, monkeypatch)
    assert caught.value.what == f"task 'of_two:Two': {told}"
    assert caught.value.remedy == "rename the file, or the folder"


@pytest.mark.parametrize("named", [False, True])
def test_modules_that_no_code_of_the_task_imports_may_have_any_name(
    named: bool, project: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("utils", "test", "queue", "layers/sizes")
    text = TASK.format(first="import queue\nimport layers.inner\nimport plain", later="")
    inner = {"layers/__init__": "", "layers/inner": "from . import sizes"}
    write(project, {**dict.fromkeys(names, "WIDTH = 64"), "of_two": text, **inner, "plain": ""})
    write(installed, {**dict.fromkeys(("utils", "test"), "WIDTH = 3"), "sizes": "WIDTH = 3"})
    load(project, named, tmp_path, monkeypatch)


def test_code_in_one_folder_means_no_module_of_the_working_directory(
    project: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"of_two": TASK.format(first="import sizes", later="")})
    write(installed, {"sizes": ""})
    write(tmp_path, {"sizes": "raise AssertionError"})
    load(project, True, tmp_path, monkeypatch)


def test_what_code_imports_is_read_from_its_text() -> None:
    text = "import a.b as c\nfrom d import e\nfrom . import f\nfrom ..g import h\n__import__('i')\nprint('j')"
    assert list(imports_of(text, "x.y")) == ["a.b", "d.e", "x.y.f", "x.g.h", "i"]
    assert list(imports_of("class :")) == list(imports_of("\0")) == []


def test_a_module_is_found_without_an_import(project: Path) -> None:
    write(project, {"package/__init__": "raise AssertionError", "package/inner": "raise AssertionError"})
    assert origin_of("package.inner", [str(project)]) == str(project / "package" / "inner.py")
    assert origin_of("package.other", [str(project)]) is None
    assert list(modules_beside(["package.inner", "fedgsp.task", "..", "a*b"], [project])) == ["package"]


def test_a_compiled_module_may_stand_beside_its_source(project: Path) -> None:
    write(project, {"sizes": ""})
    compiled = project / "sizes.abi3.so"
    compiled.touch()
    assert origin_of("sizes", [str(project)]) == str(compiled)
    check_found("task 'of_two:Two'", modules_beside(["sizes"], [project]), [str(project)])
