"""A node that is away when the groups of a round are planned, and back when they get their orders, loses nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.oracle import rounds_told, unnamed
from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.coming_and_going import away_between
from tests.support.managers_here import managers_here
from tests.support.option_kinds import by_kind
from tests.support.reference_coalitions import CoalitionReference
from tests.support.reference_groups import Played, assert_equals
from top_server import rounds
from top_server.nodes.departures import Cause
from top_server.record.journal import Line

#: The first seven of small and unlike clients: a weight that is a number of samples would outweigh all others.
TASK: dict[str, Any] = {"clients": "24", "alpha": "0.2"}
SPLITS = {"eps1": "0.4", "eps2": "0.02", "min_round": "0"}

#: Scheme -> its options, and what a run without absences comes to.
SCHEMES: dict[str, tuple[dict[str, str], Callable[[CoalitionReference], list[Played]]]] = {
    "fedcluster": (SPLITS, lambda oracle: oracle.play_fedcluster()),
    "fedfa": ({}, lambda oracle: oracle.play_fedfa()),
    "independent": ({}, lambda oracle: oracle.play_independent()),
}


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_run_has_the_bits_of_a_run_without_absences(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    monkeypatch.setattr(Cause.ALONE, "_value_", 60.0)  # the order waits for the node, however busy this machine is
    leave, left, back = asyncio.Event(), asyncio.Event(), asyncio.Event()
    begin_merging = rounds.begin_merging

    async def then_leave(*arguments: Any) -> None:
        """The last step before the groups are planned."""
        await begin_merging(*arguments)
        if arguments[2] == 2:
            leave.set()
            await left.wait()

    def watch(event: Line) -> None:
        match event:
            case {"event": "node_left", "node": "n1"}:
                left.set()
            case {"event": "round_started", "round": 2}:
                back.set()

    monkeypatch.setattr(rounds, "begin_merging", then_leave)
    stays, goes = (
        dataclasses.replace(node, state_dir=tmp_path / f"state of {node.name}")
        for node in nodes([6, 0, 3], [1, 2, 4, 5], **TASK)
    )
    options, oracle = SCHEMES[scheme]
    changes = {"rounds": 3, "learning_rate": 0.05, "learning_rate_decay": 0.9, "batch_size": 40, "min_clients": 7}
    config = settings(tmp_path / "run", scheme=scheme, task_option=TASK, **changes, **by_kind(options))
    config = dataclasses.replace(config, keep_models="last", min_nodes=2)
    run = await play(config, [stays], [(goes, away_between(leave, back))], watch)
    assert len([event for event in run.of_kind("node_joined") if event.get("away") is not None]) == 1
    assert not run.of_kind("client_skipped")
    assert unnamed(rounds_told(run.events), run.events) == []
    undisturbed = CoalitionReference(
        load_task("digits", TASK),
        range(7),
        rounds=3,
        learning_rate=0.05,
        decay=0.9,
        batch_size=40,
        options=options,
    )
    assert_equals(run, oracle(undisturbed))
