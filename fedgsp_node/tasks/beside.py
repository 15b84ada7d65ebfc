"""Refuses a task whose code imports a module of its folder where a node would import another one of that name.

Folders of tasks come last on the import path of nodes. An installed module would take the place of one in the folder,
and the node would silently train another model than the folder shows.
"""

import ast
import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fedgsp.errors import TaskError

#: Nodes take these from where FedGSP is installed, whatever else has their names.
_OF_FEDGSP = ("fedgsp", "fedgsp_node", "fedgsp_runs", "group_manager", "top_server")
_IMPORTERS = ("import_module", "__import__")


def check_found(what: str, modules: Mapping[str, Path], path: Sequence[str]) -> None:
    """Raises TaskError if another module than one of these, each with its file, is found on an import path.

    `what` is what the task is called in errors.
    """
    for name, file in modules.items():
        other = origin_of(name, path)
        # A compiled module may stand beside its source.
        if other is not None and Path(other).resolve().parent != file.resolve().parent:
            folder = file.parents[name.count(".") + (file.name == "__init__.py")]
            raise TaskError(
                f"{what}: the module {name!r} of the folder {folder} has the name of another module ({other})",
                "rename the file, or the folder",
            )


def modules_beside(names: Iterable[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Module -> its file, of the modules of these names, and of all that their code imports, that are in the folders.

    The code is read and not executed, so that imports inside functions count, too. A module of a package goes with its
    package, and is not named.
    """
    found: dict[str, Path] = {}
    open_names = list(names)
    while open_names:
        for name in _with_parents(open_names.pop()):
            file = _file_of(name, folders)
            if name not in found and file is not None:
                found[name] = file
                package = name if file.name == "__init__.py" else name.rpartition(".")[0]
                with contextlib.suppress(OSError):  # Python says so when the module is imported
                    open_names += imports_of(file.read_text(encoding="utf-8", errors="replace"), package)
    return {name: file for name, file in found.items() if name.rpartition(".")[0] not in found}


def imports_of(text: str, package: str = "") -> Iterator[str]:
    """The names of modules that the code of a module imports, perhaps followed by names inside them.

    `package` is the package that the module is in. There are none if the code is not Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                parents = package.split(".")[: -node.level + 1 or None] if node.level else []
                home = ".".join([*parents, *([node.module] if node.module else [])])
                yield from (f"{home}.{alias.name}" for alias in node.names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(str(name)), *_]):
                if called in _IMPORTERS:
                    yield name


def origin_of(name: str, path: Sequence[str]) -> str | None:
    """The file of the module that Python finds for a name on an import path, or what Python says in its place.

    None if it finds nothing, or a package without __init__.py. No module is imported.
    """
    spec, places = None, list(path)
    for one in _with_parents(name):
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for finder in finders if (spec := finder.find_spec(one, places)) is not None), None)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None else None


def _with_parents(name: str) -> list[str]:
    """The name of a module after those of the packages that it is in."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _file_of(name: str, folders: Sequence[Path]) -> Path | None:
    """The file of a module in the first folder that has it."""
    parts = name.split(".")
    if parts[0] in _OF_FEDGSP or not all(part.isidentifier() for part in parts):
        return None
    relative = Path(*parts)
    choices = (folder / one for folder in folders for one in (relative / "__init__.py", relative.with_suffix(".py")))
    return next((file for file in choices if file.is_file()), None)
