"""What a definition uses: the names of its module, and the modules inside packages."""

from __future__ import annotations

import ast
import builtins
import contextlib
import symtable
import sys
from collections.abc import Iterator, Mapping


def used_names(source: str) -> list[str]:
    """The names of its module that a definition reads, in their order, and those that its annotations quote."""
    read, tree = set(_globals(symtable.symtable(source, "<task>", "exec"))), ast.parse(source)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = [node.id for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)) if node.id in read]
    notes = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    quoted = [name for note in notes if isinstance(note, ast.AST) for name in _quoted(note)]
    return list(dict.fromkeys([*names, *(name for name in quoted if not hasattr(builtins, name))]))


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


def _globals(scope: symtable.SymbolTable) -> Iterator[str]:
    """The names that a scope, and those inside it, may read from the module."""
    for symbol in scope.get_symbols():
        # The body of a class reads a name from the module until it gives it a value: `rate = rate`.
        if symbol.is_global() or (symbol.is_referenced() and scope.get_type() in ("module", "class")):
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _globals(inner)
