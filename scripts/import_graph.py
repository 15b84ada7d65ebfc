"""Draws which file imports which, type hints included: `python scripts/import_graph.py OUT.png`.

A file stands one row above the files that it imports. An arrow can therefore only lead down; if a circle exists, its
files stand in one row and are drawn in red, and the exit code is 1.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("top_server", "fedgsp", "fedgsp_node", "group_manager")
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name, without generated stubs."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def graph() -> Graph:
    """Module -> the modules of the same package that it imports."""
    known = modules()
    found: Graph = {}
    for name, path in known.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
        nearest = {_module_of(one, known) for one in imported} - {"", name}
        found[name] = {one for one in nearest if one.partition(".")[0] == name.partition(".")[0]}
    return found


def _module_of(name: str, known: dict[str, Path]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def rows(of: Graph) -> tuple[dict[str, int], set[str]]:
    """The row of each module, 0 for a module that imports no other one; and the modules in or above a circle."""
    placed: dict[str, int] = {}
    rest = dict(of)
    while ready := [name for name, imported in rest.items() if imported <= placed.keys()]:
        for name in ready:
            placed[name] = 1 + max((placed[one] for one in rest.pop(name)), default=-1)
    top = 1 + max(placed.values(), default=-1)
    return placed | dict.fromkeys(rest, top), set(rest)


def draw(out: Path) -> int:
    """Draws all packages; returns the number of modules that are in or above a circle."""
    whole = graph()
    figure, panels = plt.subplots(len(PACKAGES), 1, figsize=(24, 36), height_ratios=[3, 2, 2, 1.2])
    circular = 0
    for package, panel in zip(PACKAGES, panels, strict=True):
        of = {name: found for name, found in whole.items() if name.partition(".")[0] == package}
        row, wrong = rows(of)
        circular += len(wrong)
        place: dict[str, tuple[float, float]] = {}
        for number in range(max(row.values()) + 1):
            line = sorted(name for name in row if row[name] == number)
            place |= {
                name: ((index + 0.5) / len(line), number + 0.25 * (index % 3)) for index, name in enumerate(line)
            }
        for name, imported in of.items():
            for one in imported:
                colour = "tab:red" if name in wrong and one in wrong else "0.75"
                panel.annotate(
                    "", place[one], place[name], arrowprops={"arrowstyle": "->", "color": colour, "lw": 0.5}
                )
        for name, (x, y) in place.items():
            colour = "tab:red" if name in wrong else "black"
            box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "0.6", "pad": 0.2}
            text = name.removeprefix(f"{package}.")
            panel.text(x, y, text, ha="center", va="center", fontsize=7, color=colour, bbox=box)
        panel.set_title(f"{package}: {len(of)} files, {len(wrong)} in or above a circle")
        panel.set_xlim(0, 1)
        panel.set_ylim(-0.5, max(row.values()) + 1)
        panel.axis("off")
    figure.savefig(out, bbox_inches="tight")
    return circular


if __name__ == "__main__":
    sys.exit(1 if draw(Path(sys.argv[1])) else 0)
