"""Commands as children of a template: this module becomes the command that its arguments name."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fedgsp.processes.children import Child, Template, stop


def python(script: str) -> list[str]:
    """A child that runs this code."""
    return [__name__, sys.executable, "-c", script]


def shell(script: str) -> list[str]:
    """A child that runs these commands of a shell."""
    return [__name__, "sh", "-c", script]


@asynccontextmanager
async def child(template: Template, command: list[str], log: Path | None = None) -> AsyncIterator[Child]:
    """A child of the template while the block lasts."""
    process = await template.spawn(command, log)
    try:
        yield process
    finally:
        await stop(process, 0)


if __name__ == "__main__":
    os.execvp(sys.argv[1], sys.argv[1:])
