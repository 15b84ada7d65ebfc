"""The task of one's own in the README runs, by the command that stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support import processes

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.e2e
async def test_the_task_in_the_readme_runs_as_it_says(tmp_path: Path) -> None:
    (section,) = re.findall(r"^## Your own model\n(.*?)^## ", README.read_text(encoding="utf-8"), re.M | re.S)
    (module,) = re.findall(r"`(\w+\.py)`", section)
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    (command,) = re.findall(r"^top-server (.*)$", section, re.M)
    assert code.count("\n") <= 30
    (tmp_path / module).write_text(code, encoding="utf-8")
    flags = [*shlex.split(command), "--rounds", "2"]
    async with processes.top_server(tmp_path, *flags) as server:
        assert await server.ended() == 0, server.errors
        finished = await server.event("run_finished", rounds=2)
    assert finished["accuracy"] > 0.8
