"""A site whose batch takes longer than the stall timeout trains in the first round, without a setting for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import top_server
from tests.support.slow_site_task import STEP_S


@pytest.mark.e2e
@pytest.mark.timeout(90)
@pytest.mark.slow
async def test_a_batch_that_takes_longer_than_the_stall_timeout_is_waited_for(tmp_path: Path) -> None:
    flags = ["--task", "tests.support.slow_site_task:Task", "--local-nodes", "3", "--clients", "3", "--rounds", "1"]
    flags += ["--batch-size", "2000", "--stall-timeout", str(STEP_S / 3)]
    async with top_server(tmp_path, *flags) as server:
        assert await server.ended(60) == 0, server.errors
        assert not [event for event in server.events if event["event"] == "client_skipped"]
        (slow,) = [event for event in server.events if event["event"] == "hop_finished" and event["client"] == 0]
        assert slow["seconds"] >= STEP_S
