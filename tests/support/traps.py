"""A folder that somebody else prepared: its files have the names of modules that processes of FedGSP import."""

from __future__ import annotations

from pathlib import Path

#: Modules that our processes import at their start or later: ours, libraries, and of the standard library.
PACKAGES = ("fedgsp", "fedgsp_node", "group_manager", "torch", "google", "rich", "top_server")
MODULES = ("blake3", "numpy", "grpc", "typer", "setproctitle", "sklearn", "tomli_w", "queue", "csv", "tomllib", "json")
#: What Python imports by itself.
HOOKS = ("sitecustomize", "usercustomize")
#: Adds a line to the file that the environment names: which module was run, and by which program.
EVIL = "import os, sys; open(os.environ['LOOT'], 'a').write(f'{__name__} in {sys.orig_argv}\\n')\n"


def set_trap(folder: Path) -> Path:
    """Puts such files into a folder, which is made if it is missing; returns the folder."""
    for package in PACKAGES:
        (folder / package).mkdir(parents=True)
        for name in ("__init__", "__main__", "cli", "server", "template"):
            (folder / package / f"{name}.py").write_text(EVIL)
    for module in (*MODULES, *HOOKS):
        (folder / f"{module}.py").write_text(EVIL)
    return folder


def what_ran(loot: Path) -> list[str]:
    """What of the trap was run: the lines of the file that the variable LOOT named."""
    return loot.read_text().splitlines() if loot.exists() else []
