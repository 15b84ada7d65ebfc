from __future__ import annotations

import hashlib
import importlib
import inspect
import py_compile
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import DataError, TaskError
from fedgsp.options import shortened
from fedgsp.tasks import TASKS
from fedgsp_node.tasks import load_task, options_to_share, source_digest
from fedgsp_node.tasks.digits import Digits
from tests.support.user_modules import started_in

Write = Callable[..., Path]

GOOD = """
    from __future__ import annotations
    import functools
    from typing import TYPE_CHECKING, Literal
    from fedgsp import Task
    if TYPE_CHECKING:
        from pathlib import Path

    class Good(Task):
        num_classes = 2
        num_clients = 3
        def __init__(self, count: int = 1, rate: float = 0.5, flag: bool = False, path: Path | None = None,
                     mode: Literal["a", "b"] = "a", level: Literal[1, 2] = 1, limit: int | None = 7, plain=3,
                     bare=None):
            self.got = dict(count=count, rate=rate, flag=flag, path=path, mode=mode, level=level, limit=limit,
                            plain=plain, bare=bare)
        def model(self): ...
        def data(self, client): ...
"""


@pytest.fixture
def user_module(tmp_path: Path) -> Iterator[Write]:
    """Writes a module into the current directory, which the test starts in; returns its path."""

    def write(name: str, source: str, after: str = "") -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source) + textwrap.dedent(after))
        importlib.invalidate_caches()
        return path

    with started_in(tmp_path):
        yield write


def load(name: str, **options: str) -> Any:
    """A task of the test, which knows its own attributes."""
    return load_task(name, options)


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def refused(name: str, options: dict[str, str] | None = None) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(name, options or {})
    assert caught.value.remedy
    return str(caught.value)


def test_a_built_in_task_is_found_by_its_name() -> None:
    task = load_task("digits", {"clients": "5", "alpha": "none"})
    assert isinstance(task, Digits)
    assert task.num_clients == 5


@pytest.mark.parametrize("target", [task.code for task in TASKS.built_in.values()])
def test_every_built_in_name_leads_to_a_class(target: str) -> None:
    module, _, attribute = target.partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), type)


def test_a_task_of_the_current_directory_is_found(user_module: Write) -> None:
    user_module("here_task", GOOD)
    assert load("here_task:Good").got["count"] == 1


def test_a_function_may_return_the_task(user_module: Write) -> None:
    user_module("function_task", GOOD, "\n    def make(count: int) -> Good:\n        return Good(count=count)\n")
    assert load("function_task:make", count="4").got["count"] == 4


def test_a_class_may_stand_in_another_and_have_methods_that_make_it(user_module: Write) -> None:
    after = """
    class Outer:
        class Inner(Good):
            @classmethod
            def of_count(cls, count: int):
                return cls(count=count)
    """
    user_module("nested_task", GOOD, after)
    assert load("nested_task:Outer.Inner", count="3").got["count"] == 3
    assert load("nested_task:Outer.Inner.of_count", count="4").got["count"] == 4
    assert "nested_task has no 'Outer.Iner'; did you mean 'Outer'?" in refused("nested_task:Outer.Iner")


def test_a_partial_of_a_class_takes_the_options_of_the_class(user_module: Write) -> None:
    user_module("partial_task", GOOD, "\n    half = functools.partial(Good, rate=0.25)\n")
    assert load("partial_task:half", count="4").got["rate"] == 0.25


def test_options_are_turned_into_the_annotated_types(user_module: Write) -> None:
    user_module("typed_task", GOOD)
    options = {"count": "5", "rate": "1e-2", "flag": "yes", "path": "a/b", "mode": "b", "level": "2", "limit": "none"}
    got = load("typed_task:Good", **options, plain="8", bare="text").got
    assert got | {"path": got["path"].as_posix()} == {
        "count": 5,
        "rate": 0.01,
        "flag": True,
        "path": "a/b",
        "mode": "b",
        "level": 2,
        "limit": None,
        "plain": 8,
        "bare": "text",
    }


def test_a_factory_with_open_keywords_takes_any_option(user_module: Write) -> None:
    after = """
    def make(**kept: int):
        task = Good()
        task.kept = kept
        return task
    """
    user_module(
        "open_task",
        GOOD,
        after,
    )
    assert load("open_task:make", a="1", b="2").kept == {"a": 1, "b": 2}


def test_options_that_nodes_share_have_their_defaults_and_no_paths(user_module: Write) -> None:
    user_module("shared_task", GOOD)
    options = {"rate": "5e-2", "path": "a/b", "limit": "none", "bare": "x" * 300}
    task = load_task("shared_task:Good", options)
    shared = {"count": "1", "rate": "0.05", "flag": "False", "mode": "a", "level": "1", "limit": "None", "plain": "3"}
    assert options_to_share("shared_task:Good", options, task) == shared | {"bare": shortened("x" * 300)}


def test_options_that_a_task_calls_local_are_not_shared(user_module: Write) -> None:
    user_module("local_task", GOOD, "\n    class Local(Good):\n        local_options = ('plain', 'bare')\n")
    shared = options_to_share("local_task:Local", {"bare": "db"}, load_task("local_task:Local", {"bare": "db"}))
    assert list(shared) == ["count", "rate", "flag", "mode", "level", "limit"]


@pytest.mark.parametrize("name", ["local_options", "head", "constant"])
def test_names_that_are_one_text_are_refused(name: str, user_module: Write) -> None:
    user_module("text_task", GOOD, f"\n    class Text(Good):\n        {name} = 'bare'\n")
    assert f"write {name} = ('bare',)" in refused("text_task:Text")


def sha256(path: Path) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


@pytest.mark.parametrize("factory", ["Good", "half", "make"])
def test_the_digest_of_a_task_is_that_of_the_file_of_its_class_whoever_makes_it(
    user_module: Write, factory: str
) -> None:
    path = user_module("versioned_task", GOOD, "\n    half = functools.partial(Good, rate=0.25)\n")
    user_module("making_task", "from versioned_task import Good, half\ndef make():\n    return Good()\n")
    assert source_digest(load_task(f"making_task:{factory}", {})) == sha256(path)


def test_the_digest_of_a_built_in_task_is_that_of_its_own_file() -> None:
    assert source_digest(load_task("digits", {})) == sha256(Path(inspect.getfile(Digits)))


def test_a_task_without_a_source_file_has_no_digest(
    user_module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = user_module("bare_task", GOOD)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.write(source, "packed_task.py")
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    py_compile.compile(str(source), str(tmp_path / "compiled_task.pyc"))
    for name in ("packed_task", "compiled_task"):
        assert source_digest(load_task(f"{name}:Good", {})) == b""


def test_files_of_digit_domains_may_differ_between_nodes() -> None:
    shared = options_to_share(
        "digit_domains", {"domains": "digits"}, load_task("digit_domains", {"domains": "digits"})
    )
    assert "data" not in shared
    assert shared["domains"] == "digits"


@pytest.mark.parametrize(
    ("option", "text", "wanted"),
    [
        ("count", "five", "give a whole number"),
        ("rate", "fast", "give a number"),
        ("flag", "maybe", "give true or false"),
        ("mode", "c", "give one of a, b"),
        ("limit", "x", "give a whole number or none"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(user_module: Write, option: str, text: str, wanted: str) -> None:
    user_module("misfit_task", GOOD)
    message = refused("misfit_task:Good", {option: text})
    assert f"option {option} cannot be {text!r}" in message
    assert wanted in message


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    message = refused("digits", {"cleints": "3"})
    assert "no option 'cleints'; did you mean 'clients'? It takes clients, partition, alpha" in message


def test_a_missing_option_is_named() -> None:
    assert refused("mnist") == "task 'mnist' needs the option 'data'; give --task-option data=VALUE"


def test_a_type_that_no_text_can_give_is_refused(user_module: Write) -> None:
    user_module("list_task", GOOD, "\n    def make(sizes: list[int] = ()):\n        return Good()\n")
    assert "annotate the parameter as int" in refused("list_task:make", {"sizes": "1,2"})
    assert load_task("list_task:make", {}).num_clients == 3


def test_a_type_that_cannot_be_resolved_is_refused(user_module: Write) -> None:
    user_module("unresolved_task", GOOD, "\n    def make(size: Nowhere = 1):\n        return Good()\n")
    assert "'Nowhere' of 'size' cannot be resolved" in refused("unresolved_task:make", {"size": "1"})


def test_an_unknown_name_is_refused_with_a_close_one() -> None:
    message = refused("fashion-mnist")
    assert "did you mean 'fashion_mnist'" in message
    assert "digits, fashion_mnist, femnist, mnist" in message


def test_a_missing_module_is_refused(user_module: Write, tmp_path: Path) -> None:
    message = refused("absent_task:Good")
    assert "there is no module 'absent_task'; check the spelling" in message
    assert f"(now: {tmp_path})" in message


@pytest.mark.parametrize("name", ["task.py:Good", "tasks/mine:Good", ":Good"])
def test_a_path_in_place_of_a_module_is_refused(name: str) -> None:
    assert "with dots instead of slashes and without .py" in refused(name)


def test_a_module_that_lacks_what_it_imports_is_refused(user_module: Write) -> None:
    path = user_module("needy_task", "\nimport no_such_library\n")
    message = refused("needy_task:Good")
    assert "needy_task needs the module 'no_such_library', which is not installed" in message
    assert f"{path}:2" in message


def test_a_module_with_a_syntax_error_is_refused_with_its_line(user_module: Write) -> None:
    path = user_module("broken_task", "x = 1\nclass :\n")
    assert f"SyntaxError: invalid syntax (broken_task.py, line 2) ({path}:2)" in refused("broken_task:Good")


@pytest.mark.parametrize("line", ["raise KeyError('weights')", "raise SystemExit(3)"])
def test_a_module_that_raises_is_refused_with_its_line(user_module: Write, line: str) -> None:
    path = user_module("raising_task", f"\n\n{line}\n")
    assert f"({path}:3)" in refused("raising_task:Good")


def test_a_missing_factory_is_refused_with_a_close_one(user_module: Write) -> None:
    user_module("spelt_task", GOOD)
    assert "spelt_task has no 'God'; did you mean 'Good'?" in refused("spelt_task:God")
    assert "it defines Good" in refused("spelt_task:xyz")
    assert "has no ''" in refused("spelt_task:")


def test_a_factory_in_a_module_of_the_named_package_is_found_without_an_import(
    user_module: Write, tmp_path: Path
) -> None:
    (tmp_path / "kept_tasks").mkdir()
    for name, text in {
        "__init__": "",
        "broken": "class :",
        "other": "class Better: ...",
        "tasks": f"{GOOD}\n    1 / 0",
    }.items():
        user_module(f"kept_tasks/{name}", text)
    assert refused("kept_tasks:Good").endswith("kept_tasks has no 'Good'; give kept_tasks.tasks:Good")
    assert "it defines none" in refused("kept_tasks:Best")


def test_a_class_whose_parameters_nobody_knows_is_refused() -> None:
    assert "Python does not know the parameters of type" in refused("builtins:dict")


def test_a_factory_that_cannot_be_called_is_refused(user_module: Write) -> None:
    user_module("uncalled_task", GOOD, "\n    task = 3\n")
    assert "it is not a class or function" in refused("uncalled_task:task")


def test_a_factory_that_raises_is_refused_with_the_line_in_its_module(user_module: Write) -> None:
    after = """
    import json
    def make():
        return json.loads("{")  # here
    """
    path = user_module("failing_task", GOOD, after)
    message = refused("failing_task:make")
    assert "JSONDecodeError" in message
    assert f"({path}:{line_of(path, '# here')})" in message


def test_a_factory_that_lacks_a_package_says_to_install_it(user_module: Write) -> None:
    user_module("reading_task", GOOD, "\n    def make():\n        raise ImportError('pyarrow is required')\n")
    assert "; install the package that this names for " in refused("reading_task:make")


def test_an_abstract_task_is_refused(user_module: Write) -> None:
    user_module("abstract_task", "from fedgsp import Task\nclass Half(Task):\n    num_classes = 2\n")
    assert "abstract" in refused("abstract_task:Half")


def test_an_error_meant_for_the_user_passes_through(user_module: Write) -> None:
    after = """
    from fedgsp.errors import DataError
    def make():
        raise DataError("images.bin is cut", "get it again")
    """
    user_module("lacking_task", GOOD, after)
    with pytest.raises(DataError, match=r"images\.bin is cut; get it again"):
        load_task("lacking_task:make", {})


@pytest.mark.parametrize(("body", "what"), [("return None", "returned None"), ("return Good", "returned ABCMeta")])
def test_a_result_that_is_no_task_is_refused(user_module: Write, body: str, what: str) -> None:
    user_module("other_task", GOOD, f"\n    def make():\n        {body}\n")
    assert f"{what}" in refused("other_task:make")


@pytest.mark.parametrize("value", ["0", "-2", "2.0", "True", "None", "'3'"])
@pytest.mark.parametrize("number", ["num_classes", "num_clients"])
def test_a_count_that_is_no_positive_int_is_refused(user_module: Write, number: str, value: str) -> None:
    user_module("count_task", GOOD, f"\n    class Bad(Good):\n        {number} = {value}\n")
    assert f"set {number} to a positive int" in refused("count_task:Bad")


@pytest.mark.parametrize("line", ["num_classes = 2", "num_clients = 3"])
def test_a_missing_number_is_refused(user_module: Write, line: str) -> None:
    number = line.split()[0]
    user_module("numberless_task", GOOD.replace(line, "pass"))
    message = refused("numberless_task:Good")
    assert f"has no {number}; set {number} to a positive int in Good" in message


def test_numbers_may_be_set_as_the_task_is_built(user_module: Write) -> None:
    after = """
    class Built(Good):
        def __init__(self, clients: int):
            self.num_clients = clients
            self.num_classes = clients + 1
    """
    lines = GOOD.replace("num_classes = 2", "pass").replace("num_clients = 3", "pass")
    user_module("built_task", lines, after)
    task = load_task("built_task:Built", {"clients": "4"})
    assert (task.num_clients, task.num_classes) == (4, 5)


def test_a_number_of_clients_may_be_a_property(user_module: Write) -> None:
    after = """
    class Counted(Good):
        @property
        def num_clients(self):
            return 6
    """
    user_module("counted_task", GOOD, after)
    assert load_task("counted_task:Counted", {}).num_clients == 6


def test_a_number_of_clients_that_raises_is_refused_with_its_line(user_module: Write) -> None:
    after = """
    class Bad(Good):
        @property
        def num_clients(self):
            return 1 // 0
    """
    path = user_module("divided_task", GOOD, after)
    assert f"ZeroDivisionError: integer division or modulo by zero ({path}:{line_of(path, '1 // 0')})" in (
        refused("divided_task:Bad")
    )
