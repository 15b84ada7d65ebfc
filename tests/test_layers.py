"""Who may import what: fedgsp.v1 <- fedgsp <- {top_server | group_manager | fedgsp_node} <- fedgsp_runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = ("top_server", "group_manager", "fedgsp_node")
#: Plays the processes from Python.
ABOVE = "fedgsp_runs"
PACKAGES = ("fedgsp", *PROCESSES, ABOVE)

#: Module -> the only files that import it, as patterns whose * spans folders.
READERS = {
    "fedgsp.v1": (
        "fedgsp/*",
        *("*/server.py", "*/servicer.py", "*/client.py", "*/grouping_service.py"),
        "fedgsp_node/connections/attachment.py",  # the client of a manager's order stream
        "fedgsp_node/connections/hosting.py",  # the client of the stream for managers on this machine
    ),
    "torch": ("fedgsp_node/*", "fedgsp_runs/result.py"),  # and, deferred, fedgsp/task.py
    "ortools": ("top_server/grouping/balanced_clusters.py",),
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"), ()),
}
#: Files that decide, and therefore neither use a network nor wait.
PURE = (
    "top_server/grouping/*",
    "top_server/merging/*",
    "top_server/absences.py",
    "top_server/nodes/admission.py",
    "top_server/nodes/departures.py",
    "top_server/progress.py",
    "top_server/teams.py",
    "fedgsp_node/policies/policy.py",
    *(f"group_manager/{name}.py" for name in ("absence", "chain", "flaws", "ledger", "norm_limit", "requests")),
)
#: Package -> what importing all of it must not load.
NEVER_LOADED = {
    "fedgsp": ("torch", "ortools", "sklearn", "typer", "rich"),
    "group_manager": ("torch", "ortools", "sklearn", "typer", "rich", "cryptography"),
    "top_server": ("torch", "fedgsp_node", "group_manager"),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, with its line; `deferred` if it stands in a function or under TYPE_CHECKING."""

    name: str
    line: int
    deferred: bool

    def of(self, module: str) -> bool:
        return self.name == module or self.name.startswith(f"{module}.")


def files() -> list[PurePath]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    return sorted(PurePath(path.relative_to(ROOT)) for path in found)


@cache
def tree_of(path: PurePath) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


@cache
def imports_of(path: PurePath) -> tuple[Import, ...]:
    return tuple(_imports(tree_of(path), path, deferred=False))


def _imports(node: ast.AST, path: PurePath, deferred: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, deferred) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = [*path.parent.parts[: len(path.parent.parts) - node.level + 1]] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from (Import(f"{module}.{alias.name}", node.lineno, deferred) for alias in node.names)
    deferred |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    deferred |= isinstance(node, ast.If) and ast.unparse(node.test).removeprefix("typing.") == "TYPE_CHECKING"
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, path, deferred)


def matches(path: PurePath, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path.as_posix(), pattern) for pattern in patterns)


def at(path: PurePath, line: int) -> str:
    return f"{path}:{line}"


def test_there_is_something_to_look_at() -> None:
    assert {path.parts[0] for path in files()} == set(PACKAGES)
    assert sum(len(imports_of(path)) for path in files()) > len(files())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_none_of_those_beside_or_above_it(package: str) -> None:
    others = [one for one in (*PROCESSES, ABOVE) if one != package and package != ABOVE]
    crossing = [
        f"{at(path, found.line)} imports {found.name}"
        for path in files()
        if path.parts[0] == package
        for found in imports_of(path)
        if any(found.of(other) for other in others)
    ]
    assert not crossing


@pytest.mark.parametrize("module", READERS)
def test_a_module_is_imported_by_its_readers_alone(module: str) -> None:
    def allowed(path: PurePath, found: Import) -> bool:
        if module == "torch" and path == PurePath("fedgsp/task.py"):
            return found.deferred
        return matches(path, READERS[module])

    wrong = [
        at(path, found.line)
        for path in files()
        for found in imports_of(path)
        if found.of(module) and not allowed(path, found)
    ]
    assert not wrong


def test_every_pattern_of_the_tables_is_that_of_a_file() -> None:
    for pattern in [*PURE, *(pattern for patterns in READERS.values() for pattern in patterns)]:
        assert any(matches(path, (pattern,)) for path in files()), pattern


def test_files_that_decide_use_no_network_and_wait_for_nothing() -> None:
    pure = [path for path in files() if matches(path, PURE)]
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [at(path, node.lineno) for path in pure for node in ast.walk(tree_of(path)) if isinstance(node, waiting)]
    assert not found
    modules = [module_of(path) for path in pure]
    assert loaded_after(modules) & {"asyncio", "grpc", "torch"} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_of_a_package_import_each_other_in_a_circle(package: str) -> None:
    """Imports for type hints, and imports within functions, count like all others."""
    modules = {module_of(path): path for path in files() if path.parts[0] == package}
    arrows = {
        module: {where for found in imports_of(path) if (where := imported(found.name, modules)) != module}
        for module, path in modules.items()
    }
    try:
        tuple(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(filter(None, error.args[1])))


def imported(name: str, modules: Mapping[str, PurePath]) -> str:
    """The module that an imported name is in; empty if it is in no module of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def test_nothing_can_unpickle() -> None:
    wrong = []
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
                wrong.append(at(path, node.lineno))
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                wrong.append(at(path, node.value.lineno))
    assert not wrong


def test_nothing_prints() -> None:
    wrong = [
        at(path, node.lineno)
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong


@pytest.mark.parametrize("package", NEVER_LOADED)
def test_a_package_loads_only_what_its_process_needs(package: str) -> None:
    modules = [module_of(path) for path in files() if path.parts[0] == package and path.name != "__main__.py"]
    loaded = loaded_after(modules)
    assert package in loaded
    assert loaded & set(NEVER_LOADED[package]) == set()


def module_of(path: PurePath) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def loaded_after(modules: list[str]) -> set[str]:
    """The top-level modules that a fresh interpreter has after these imports."""
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    script += "sys.stdout.write(' '.join({name.partition('.')[0] for name in sys.modules}))"
    ended = subprocess.run(
        [sys.executable, "-c", script, *modules], capture_output=True, text=True, timeout=50, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())
