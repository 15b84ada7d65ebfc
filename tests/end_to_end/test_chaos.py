"""Real processes are killed and stopped while they work: the run goes on to the oracle's bits, and leaves nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import oracle
from benchmarks.chaos.plan import KEPT, RELAYED, Fault, Moment, Plan, draw
from benchmarks.chaos.play import play

HOSTED = ((0, 3, 5), (1, 2, 4))


NEVER_S = 600.0


def plan(seed: int, *faults: Fault, optimizer: str = "sgd") -> Plan:
    """A part of the model is frozen, and a part is in bfloat16."""
    return Plan(seed, "fedgsp", "auto", 1.0, 3, HOSTED, faults, pause_s=0.003, optimizer=optimizer, variant="both")


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("optimizer", "faults"),
    [
        pytest.param(
            KEPT,
            (
                Fault("stop", "node", 0, Moment(1, 1, 0.05), 1.0),
                Fault("kill", "node", 1, Moment(2, 2, 0.0), NEVER_S),
            ),
            id="nodes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            RELAYED,
            (
                Fault("kill", "manager", 0, Moment(1, 2, 0.05), 0.0),
                Fault("kill", "top server", 0, Moment(2, 3, 0.0), 0.0),
            ),
            id="servers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sgd",
            (Fault("stop", "manager", 0, Moment(1, 1, 0.05), 2.3, times=3, gap_s=0.2),),
            id="a manager that is frozen again and again",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sgd",
            (Fault("stop", "node", 0, Moment(1, 1, 0.05), 2.5, times=3, gap_s=0.4),),
            id="a node that is frozen again and again",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sgd",
            (Fault("stop", "top server", 0, Moment(1, 1, 0.05), 2.9, times=3, gap_s=0.1),),
            id="a top server that is frozen again and again",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_run_that_is_hit_finishes_with_the_oracles_bits_and_leaves_nothing(
    tmp_path: Path, optimizer: str, faults: tuple[Fault, ...]
) -> None:
    record = await play(plan(1, *faults, optimizer=optimizer), tmp_path)
    assert record.wrong == []
    assert len(record.hits) == sum(fault.times for fault in faults)


def test_a_seed_gives_the_same_plan_each_time() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert len({draw(seed) for seed in range(50)}) == 50


def test_half_of_the_stops_are_short_and_come_several_times() -> None:
    stops = [fault for seed in range(400) for fault in draw(seed).faults if fault.kind == "stop"]
    repeated = [fault for fault in stops if fault.times > 1]
    assert 0.4 < len(repeated) / len(stops) < 0.6
    assert all(1.0 <= fault.lasting_s <= 3.0 and fault.gap_s > 0 for fault in repeated)


def test_an_absence_that_is_not_named_and_one_that_was_none_are_told() -> None:
    told = {2: oracle.Told([[0, 1], [2, 3]], skipped={(0, 1)}, failed={1}, away={4})}
    named = {"event": "clients_missed", "first": 2, "last": 3}
    assert oracle.unnamed(told, [{**named, "last": 2, "clients": [1, 2, 3, 4]}]) == []
    assert oracle.unnamed(told, [{**named, "clients": [1, 2, 3]}]) == [
        "round 2: the absence of client 4 is not named",
        *(f"round 3: client {client} is called absent" for client in (1, 2, 3)),
    ]


def test_a_client_that_came_back_in_time_to_train_was_not_absent() -> None:
    told = {2: oracle.Told([[0, 1]], trained={(0, 0), (0, 1)}, away={1})}
    assert oracle.unnamed(told, []) == []


def test_a_client_that_failed_a_question_and_is_in_no_team_was_absent() -> None:
    skipped = {"event": "client_skipped", "round": 1, "group": 0, "program": "describe"}
    started = {"event": "round_started", "round": 1, "teams": [[0, 1]]}
    events = [{**skipped, "client": 1}, {**skipped, "client": 2}, started]
    assert oracle.unnamed(oracle.rounds_told(events), events) == ["round 1: the absence of client 2 is not named"]
    resumed: list[dict[str, Any]] = [*events[:2], {"event": "listening"}, started]
    assert oracle.unnamed(oracle.rounds_told(resumed), resumed) == []


def test_of_a_round_that_was_begun_anew_the_last_time_counts() -> None:
    started = {"event": "round_started", "round": 1, "teams": [[0, 1]]}
    skipped = {"event": "client_skipped", "round": 1, "group": 0, "program": "relay", "client": 1}
    resumed = {"event": "round_resumed", "round": 1}
    assert oracle.rounds_told([started, skipped])[1].taking_part == [[0]]
    assert oracle.rounds_told([started, skipped, started])[1].taking_part == [[0, 1]]
    assert oracle.rounds_told([started, skipped, resumed, started])[1].taking_part == [[0]]


def test_the_oracle_tells_who_took_part_by_the_bits() -> None:
    small = dataclasses.replace(plan(4), rounds=1)
    everyone = oracle.expected(small, {1: oracle.Told([[0, 1, 2], [3, 4, 5]])}).model
    but_one = oracle.expected(small, {1: oracle.Told([[0, 1, 2], [3, 4, 5]], {(1, 4)})}).model
    assert any(everyone[name].tobytes() != but_one[name].tobytes() for name in everyone)
