"""Ports that nobody has."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def free_ports(count: int) -> Iterator[list[socket.socket]]:
    """Neighbouring ports that nobody has, each held by a socket until it is closed."""
    with ExitStack() as stack:
        while True:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            held = [first]
            try:
                for offset in range(1, count):
                    held.append(stack.enter_context(socket.socket()))
                    held[-1].bind(("127.0.0.1", first.getsockname()[1] + offset))
            except (OSError, OverflowError):
                continue
            yield held
            return


def range_of(held: list[socket.socket]) -> range:
    first: int = held[0].getsockname()[1]
    return range(first, first + len(held))
