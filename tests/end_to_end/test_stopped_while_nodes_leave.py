"""A run whose last round is over, and whose top server is stopped while it waits for its nodes to leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from tests.support.cluster import nodes, play, settings
from top_server.nodes.membership import Membership
from top_server.resume.find import find

pytestmark = pytest.mark.e2e


async def test_the_run_is_a_finished_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dismiss = Membership.dismiss

    async def then_stop(*arguments: Any) -> None:
        await dismiss(*arguments)
        raise asyncio.CancelledError

    monkeypatch.setattr(Membership, "dismiss", then_stop)
    run = await play(settings(tmp_path / "run"), nodes([0, 1, 2, 3], [4, 5, 6, 7]))  # verifies the audit log, too
    assert [event["rounds"] for event in run.of_kind("run_finished")] == [2]
    with pytest.raises(ConfigError, match="that run is finished"):
        find(run.directory)
