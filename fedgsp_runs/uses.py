"""What a definition uses: the names of its module, and the modules inside packages."""

from __future__ import annotations

import ast
import builtins
import contextlib
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping


def used_names(source: str, evaluated: bool) -> dict[str, bool]:
    """The names of its module that a definition reads, in their order, and those that its annotations quote.

    The value says whether the name is needed when the definition is executed, and not only by the body of a function
    in it. `evaluated` says whether annotations are.
    """
    read, tree = set(_globals(symtable.symtable(source, "<task>", "exec"))), ast.parse(source)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = [node.id for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)) if node.id in read]
    notes = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    quoted = [name for note in notes if isinstance(note, ast.AST) for name in _quoted(note)]
    at_once = {node.id for node in _executed(tree, evaluated) if isinstance(node, ast.Name)}
    return {name: name in at_once for name in [*names, *(name for name in quoted if not hasattr(builtins, name))]}


def submodules(source: str, packages: Mapping[str, str]) -> list[str]:
    """The modules inside packages that a definition reads, as in `package.sub.load()`; `packages`: what names mean."""
    found = (_module(node, packages) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return sorted(set(filter(None, found)))


def _module(node: ast.AST, packages: Mapping[str, str]) -> str | None:
    """The module for which an expression stands, such as `package.sub`, if it is one."""
    if isinstance(node, ast.Name):
        return packages.get(node.id)
    if not isinstance(node, ast.Attribute) or (package := _module(node.value, packages)) is None:
        return None
    name = f"{package}.{node.attr}"
    held = getattr(sys.modules.get(package), node.attr, None)  # or a function that has the name of its module
    return name if held is not None and sys.modules.get(name) is held else None


def _quoted(note: ast.AST) -> Iterator[str]:
    """The names in the texts of an annotation, such as `"Hint | None"`; the texts of a Literal are no names."""
    if isinstance(note, ast.Subscript) and "Literal" in (getattr(note.value, one, "") for one in ("id", "attr")):
        return
    if isinstance(note, ast.Constant) and isinstance(note.value, str):
        with contextlib.suppress(SyntaxError, ValueError):  # a text for readers
            yield from (node.id for node in ast.walk(ast.parse(note.value, mode="eval")) if isinstance(node, ast.Name))
    for inner in ast.iter_child_nodes(note):
        yield from _quoted(inner)


def _executed(node: ast.AST, evaluated: bool) -> Iterator[ast.AST]:
    """The parts of a statement that are executed with it: not the bodies of functions, nor annotations as texts."""
    parts: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        parts = [*getattr(node, "decorator_list", ()), *node.args.defaults, *node.args.kw_defaults]
        if evaluated:
            parts += [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            parts.append(getattr(node, "returns", None))
    elif isinstance(node, ast.AnnAssign) and not evaluated:
        parts = [node.target, node.value]
    yield node
    for part in parts:
        if part is not None:
            yield from _executed(part, evaluated)


def _globals(scope: symtable.SymbolTable) -> Iterator[str]:
    """The names that a scope, and those inside it, may read from the module."""
    for symbol in scope.get_symbols():
        # The body of a class reads a name from the module until it gives it a value: `rate = rate`.
        if symbol.is_global() or (symbol.is_referenced() and scope.get_type() in ("module", "class")):
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _globals(inner)
