"""Groups dealt by time: the record of the run decides the bits, for the oracle and for a run that is resumed."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.processes import assert_gone, resumed, top_server
from tests.support.recorded_turns import expected_seconds
from tests.support.reference import Reference, assert_same_bits
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.record.model_files import load

EIGHT = range(8)
#: The first eight of many small clients: 8 to 128 samples.
TASK: dict[str, Any] = {"clients": "24"}
ROUNDS = 4


def assert_follows_its_record(directory: RunDirectory) -> list[list[list[int]]]:
    """The times, groups and models of a run are those that follow from its record; returns the groups."""
    events = read_lines(directory.events)
    task = load_task("digits", TASK)
    seconds = expected_seconds(events, task, EIGHT)
    oracle = Reference(task, EIGHT, rounds=ROUNDS, beta=4, alpha=0.1, sampling_rate=1.0, seconds=seconds)
    told = {event["round"]: event["seconds"] for event in events if event["event"] == "times_expected"}
    teams = {event["round"]: event["teams"] for event in events if event["event"] == "round_started"}
    for number in range(1, ROUNDS + 1):
        assert told[number] == {str(client): value for client, value in seconds(number).items()}
        assert [tuple(team) for team in teams[number]] == list(oracle.sampled_groups(number))
    assert_same_bits(load(directory.models / f"round-{ROUNDS:04d}.safetensors")[0], oracle.play_fedgsp()[-1])
    return [teams[number] for number in range(1, ROUNDS + 1)]


async def test_a_balanced_run_has_the_groups_and_bits_of_the_oracle_that_reads_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    given: dict[str, Any] = {
        "task_option": TASK,
        "min_clients": 8,
        "balance": "time",
        "rounds": ROUNDS,
        "alpha": 0.1,
        "beta": 4,
    }
    run = await play(settings(tmp_path / "run", **given), nodes(range(3), range(3, 8), **TASK))
    dealt = assert_follows_its_record(run.directory)
    task = load_task("digits", TASK)
    plain = Reference(task, EIGHT, rounds=ROUNDS, beta=4, alpha=0.1, sampling_rate=1.0)
    # In the first round the times follow from the samples, and ICG's own pairs would differ too much in them.
    assert dealt[0] != [list(team) for team in plain.sampled_groups(1)]
    assert all("time" in event["reason"] for event in run.of_kind("round_started"))


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_a_balanced_run_that_was_killed_and_resumed_follows_its_record(tmp_path: Path) -> None:
    flags = ["--balance", "time", "--rounds", str(ROUNDS), "--beta", "4", "--alpha", "0.1", "--sampling-rate", "1"]
    flags += ["--local-nodes", "2", "--clients", "8", "--task-option", "clients=24", "--keep-models", "all"]
    async with top_server(tmp_path, *flags) as server:
        await server.event("round_finished", round=1)
        await server.event("hop_finished", round=2)
        family = server.family()
        server.send(SIGKILL)
        await assert_gone(family)
    async with resumed(tmp_path / "run") as server:
        assert await server.ended(90) == 0, server.errors
    assert_follows_its_record(RunDirectory(tmp_path / "run"))
