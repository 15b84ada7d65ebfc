"""Recorded failures of real runs: what a browser gets first names who, why and what to do.

`tests/support/recorded_failures.py` has recorded them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.web import client

FAILURES = Path(__file__).with_name("failures")
#: Failure -> how the run ended, and what is told: who, why, and what to do.
TOLD = {
    "nobody-trained": ("failed", "client 0", "the scanner is offline", "correct the task or the data"),
    "bad-model": ("finished", "client 2", "training diverged", "lower --learning-rate"),
    "task-raises": (
        "finished",
        "client 3",
        "the scanner is offline (faulty_task.py:37)",
        "correct the task or the data",
    ),
    "no-memory": ("finished", "client 5", "the memory of cpu is full", "Lower --batch-size"),
    "node-killed": ("finished", "client 4", "its stream was lost", "start its node again"),
    "too-few-clients": ("failed", "node node-1", "only 4 of 8 clients were there for 30 s", "start the nodes again"),
    "refused": ("finished", "node paris", "its task has clients=9", "start the node again"),
    "another-task-file": ("finished", "node paris", "its file has digest", "give all nodes the same file"),
    "stopped": ("stopped", "", "SIGTERM", "top-server --resume"),
    "killed": ("failed", "The top server", "it was killed", "continue with top-server --resume"),
    "full-disk": ("failed", "The disk of the run directory is full", "can write no event", "make room on that disk"),
}


async def first(folder: Path, name: str) -> dict[str, Any]:
    shutil.copytree(FAILURES / name, folder / name)
    async with client(folder) as browser:
        found: dict[str, Any] = (await browser.get(f"run.json?run={name}")).json()
    return found


def test_every_recorded_failure_is_looked_at() -> None:
    assert {path.name for path in FAILURES.iterdir()} == TOLD.keys()


@pytest.mark.parametrize("name", TOLD)
async def test_the_first_screen_names_who_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "full-disk":
        monkeypatch.setattr("top_server.web.state.room", lambda _: 0)
    whole = await first(tmp_path, name)
    kind, who, why, remedy = TOLD[name]
    assert whole["ending"]["kind"] == kind
    troubles = [f"{one['who']} {one['what']}: {one['reason']}. {one['remedy']}" for one in whole["troubles"]]
    text = "\n".join([*whole["ending"].values(), *troubles])
    for part in (who, why, remedy):
        assert part in text


async def test_a_disk_with_room_again_is_not_told(tmp_path: Path) -> None:
    whole = await first(tmp_path, "full-disk")
    assert "The top server ended without a word" in whole["ending"]["title"]
    assert "its disk was full" in whole["ending"]["reason"]
