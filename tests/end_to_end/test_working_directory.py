"""The folder that a run is started in may hold anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.processes.lifecycle import python_module
from tests.support.processes import running

pytestmark = pytest.mark.e2e

QUICK = ["--rounds", "1", "--beta", "1", "--local-nodes", "1", "--clients", "2", "--listen", "127.0.0.1:0"]


@pytest.mark.slow
async def test_files_named_like_our_packages_and_libraries_are_not_imported_but_the_users_task_is(
    tmp_path: Path,
) -> None:
    for package in ("fedgsp", "fedgsp_node", "group_manager", "top_server"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('the wrong package')\n")
    for library in ("numpy", "blake3"):
        (tmp_path / f"{library}.py").write_text("raise ImportError('the wrong library')\n")
    (tmp_path / "mine.py").write_text("from helper import Digits\nclass Mine(Digits): pass\n")
    (tmp_path / "helper.py").write_text("from fedgsp_node.tasks.digits import Digits\n")
    command = [*python_module("top_server"), *QUICK, "--json", "--task", "mine:Mine", "--task-option", "clients=2"]
    async with running(command, tmp_path / "top-server.log") as run:
        await run.event("run_finished", rounds=1)
        assert await run.ended() == 0
