"""A site that is away for a while: the run waits if it must, and names every absence at its end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.oracle import rounds_told, unnamed
from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.coming_and_going import away_between
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, assert_same_bits
from top_server.record.journal import Line

TASK = {"clients": "24"}


async def test_a_run_waits_for_enough_clients_between_rounds_and_names_who_missed_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    leave, back = asyncio.Event(), asyncio.Event()

    def watch(event: Line) -> None:
        match event:
            case {"event": "hop_finished", "round": 2}:
                leave.set()
            case {"event": "round_waits", "round": 3}:
                back.set()

    hosts = nodes([0, 2, 4, 6], [1, 3, 5, 7], clients=TASK["clients"])
    changes: dict[str, Any] = {"task_option": TASK, "beta": 1, "rounds": 4, "min_clients": 8}
    run = await play(settings(tmp_path / "run", **changes), hosts[:1], [(hosts[1], away_between(leave, back))], watch)
    told = rounds_told(run.events)
    skipped = {(number, client) for number, this in told.items() for _, client in this.skipped}
    assert {number for number, _ in skipped} == {2}
    assert skipped <= {(2, client) for client in (1, 3, 5, 7)}
    assert [event["round"] for event in run.of_kind("round_waits")] == [3]
    assert [event["clients"] for event in run.of_kind("round_waited")] == [8]
    assert run.of_kind("node_joined")[-1]["away"] is not None
    assert unnamed(told, run.events) == []
    missed = run.of_kind("clients_missed")
    assert {(2, client) for event in missed for client in event["clients"]} == skipped
    summary = json.loads(run.directory.summary.read_text())
    assert [absence["clients"] for absence in summary["absences"]] == [event["clients"] for event in missed]
    oracle = Reference(
        load_task("digits", TASK),
        range(8),
        rounds=4,
        beta=1,
        sampling_rate=1.0,
        takes_part=lambda number, _group, client: (number, client) not in skipped,
    )
    assert_same_bits(run.model(4), oracle.play_fedgsp()[3])
