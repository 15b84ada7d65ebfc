"""Two hospitals that start different copies of the same module."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support import toy_task
from tests.support.processes import node, top_server


def copies(folder: Path) -> None:
    """The same module in two folders, as one and as another version."""
    for name, more in (("old", ""), ("new", "\n# mended\n")):
        (folder / name).mkdir()
        copy = Path(shutil.copy(toy_task.__file__, folder / name / "ours.py"))
        copy.write_text(copy.read_text(encoding="utf-8") + more, encoding="utf-8")


@pytest.mark.e2e
async def test_nodes_with_different_copies_of_a_module_train_together_and_the_log_names_them(tmp_path: Path) -> None:
    copies(tmp_path)
    task = ("--task", "ours:Toy")
    async with AsyncExitStack() as stack:
        flags = ("--rounds", "1", "--scheme", "global", "--min-nodes", "2")
        server = await stack.enter_async_context(top_server(tmp_path, *task, *flags))
        address = (await server.event("listening"))["address"]
        for client, name in enumerate(("old", "new")):
            flags = (*task, "--clients", str(client))
            await stack.enter_async_context(node(tmp_path / name, address, *flags, name=name))
            await server.event("node_joined", node=name, differs_from="old" if client else None)
        assert await server.ended() == 0, server.errors
    assert "node 'new' has another version of the task" in server.errors
    assert "than node 'old', the first to join" in server.errors
