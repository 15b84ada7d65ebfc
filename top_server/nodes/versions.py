"""Versions of the task: nodes with another file than the first one are told, and not refused."""

import logging

from fedgsp.messages import Hello, WouldTake

logger = logging.getLogger(__name__)


def differs_from(hello: Hello, first: Hello | None) -> str | None:
    """The name of the first node, if this node is known to run another version of the task; logs a warning.

    The node is not refused: files may differ only in line endings, and a task may be replaced node by node.
    """
    if first is None or not _other_file(hello, first):
        return None
    logger.warning(
        "node %r has another version of the task (SHA-256 %s) than node %r, the first to join, had (%s): %s",
        hello.node,
        beginning(hello.task_digest),
        first.node,
        beginning(first.task_digest),
        "give both the same file" if ":" in hello.task else "install the same version of fedgsp on both",
    )
    return first.node


def compared(hello: Hello, first: Hello | None) -> WouldTake:
    """What a node that could join has in another version than the first node; the first node itself differs never."""
    if first is None:
        return WouldTake(False, False)
    return WouldTake(_other_file(hello, first), bool(hello.torch and first.torch) and hello.torch != first.torch)


def _other_file(hello: Hello, first: Hello) -> bool:
    return bool(hello.task_digest and first.task_digest) and hello.task_digest != first.task_digest


def beginning(digest: bytes) -> str:
    """The first 16 hex digits, which are enough for a person to compare."""
    return digest.hex()[:16]
