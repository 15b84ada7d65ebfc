"""Limits the memory that Python allocates in a test."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def allocating_less_than(most: int) -> Iterator[None]:
    """Fails if the block ends and has had `most` bytes or more at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
