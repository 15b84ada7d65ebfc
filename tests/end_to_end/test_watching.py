"""A run that trackers follow and monitoring asks, cut off in the middle and resumed."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.processes import program, resumed, top_server
from top_server.tracking import chosen
from top_server.tracking.following import exported

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

DEADLINE_S = 100.0
ROUNDS = 5
FLAGS = ["--local-nodes", "2", "--clients", "4", "--rounds", str(ROUNDS), "--track", "tensorboard"]


async def asked(address: str, path: str) -> tuple[int, str]:
    """What a server answers."""

    def ask() -> tuple[int, str]:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()

    return await asyncio.to_thread(ask)


def values(text: str) -> dict[str, float]:
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {one.name: one.value for one in samples if not one.labels}


def tracked(folder: Path) -> dict[str, Any]:
    """Tag -> (step, value) of each point that TensorBoard shows."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


async def test_a_run_that_monitoring_asks_prints_every_round(tmp_path: Path) -> None:
    command = ["top_server", "--listen", "127.0.0.1:0", "--run-dir", "run", "--metrics", "127.0.0.1:0"]
    flags = ["--task-option", "clients=4", "--local-nodes", "1", "--clients", "4", "--rounds", "2"]
    async with program([*command, *flags], tmp_path / "log") as run:
        assert await run.ended(DEADLINE_S) == 0, run.errors
    assert [line for line in run.lines if " listening on 127.0.0.1:" in line], run.lines
    for number in (1, 2):
        assert [line for line in run.lines if f" round {number}: " in line and "accuracy 0." in line], run.lines
    assert "a subscriber failed" not in run.errors


@pytest.mark.slow
async def test_a_run_is_followed_and_resumed_without_a_doubled_point(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    async with top_server(tmp_path, *FLAGS, "--metrics", "127.0.0.1:0") as run:
        address = (await run.event("listening", DEADLINE_S))["metrics"]
        assert await asked(address, "/healthz") == (200, "ok\n")
        await run.event("round_finished", DEADLINE_S, round=2)
        found = values((await asked(address, "/metrics"))[1])
        assert found["fedgsp_round"] >= 2
        assert (found["fedgsp_nodes"], found["fedgsp_clients"]) == (2, 4)
        run.send(SIGKILL)
        await run.ended(DEADLINE_S)
    async with resumed(directory) as run:
        address = (await run.event("listening", DEADLINE_S))["metrics"]
        await run.event("run_resumed", DEADLINE_S)
        assert values((await asked(address, "/metrics"))[1])["fedgsp_rounds"] == ROUNDS
        assert await run.ended(DEADLINE_S) == 0, run.errors
        assert "WARNING" not in run.errors
    rows = [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]
    found_points = tracked(directory / "tensorboard")
    assert [step for step, _ in found_points["accuracy"]] == list(range(1, ROUNDS + 1))
    assert [value for _, value in found_points["accuracy"]] == pytest.approx([row["accuracy"] for row in rows])
    ((tracker, options),) = chosen("--to", [f"tensorboard={tmp_path / 'board'}"], {})
    exported(tracker, options, directory)
    assert tracked(tmp_path / "board" / "run") == found_points
