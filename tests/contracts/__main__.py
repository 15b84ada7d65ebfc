"""The command `python -m tests.contracts KIND=NAME ...`."""

from __future__ import annotations

import asyncio
import sys

from tests.contracts.kinds import CHECKS


def main(*parts: str) -> None:
    """Checks parts by kind and name."""
    for part in parts:
        kind, _, name = part.partition("=")
        asyncio.run(CHECKS[kind](name))
        sys.stdout.write(f"{kind} {name} keeps its contract\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
