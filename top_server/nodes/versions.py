"""Versions of the task: nodes with another file than the first one are told, and not refused."""

import logging

from fedgsp.messages import Hello

logger = logging.getLogger(__name__)


def differs_from(hello: Hello, first: Hello | None) -> str | None:
    """The name of the first node, if this node is known to run another version of the task; logs a warning.

    The node is not refused: files may differ only in line endings, and a task may be replaced node by node.
    """
    if first is None or not hello.task_digest or not first.task_digest or hello.task_digest == first.task_digest:
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


def beginning(digest: bytes) -> str:
    """The first 16 hex digits, which are enough for a person to compare."""
    return digest.hex()[:16]
