"""Runs whose workers are in a cluster, and what the oracle says of their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.chaos import oracle
from benchmarks.chaos.plan import Plan
from top_server.placing.workers import shares
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.record.model_files import load

CLIENTS, WORKERS = 24, 4
TASK = "benchmarks.chaos.slow_digits:SlowDigits"


def model_of(run: Path) -> dict[str, bytes]:
    tensors, _ = load(run / "models" / "final.safetensors")
    return {name: array.tobytes() for name, array in tensors.items()}


def options(**given: Any) -> list[str]:
    return [word for name, value in given.items() for word in ("--task-option", f"{name}={value}")]


def settings_of(plan: Plan) -> list[str]:
    """The flags of a run that the oracle of the chaos runs computes."""
    return [
        *("--task", TASK, *options(clients=plan.clients, pause=plan.pause_s, variant=plan.variant)),
        *("--alpha", str(plan.alpha), "--beta", "2", "--sampling-rate", "1", "--rounds", str(plan.rounds)),
        *("--seed", str(plan.seed), "--optimizer", "sgd", "--min-clients", str(plan.min_clients)),
    ]


def planned(rounds: int, seed: int, min_clients: int, pause_s: float) -> Plan:
    hosted = tuple(tuple(share) for share in shares(CLIENTS, WORKERS))
    return Plan(seed, "fedgsp", "auto", 0.5, rounds, hosted, (), pause_s=pause_s, min_clients=min_clients)


def differing(plan: Plan, run: Path) -> list[str]:
    """What differs from what the oracle computes for who took part."""
    events = read_lines(RunDirectory(run).events)
    told = oracle.rounds_told(events)
    found, expected = load(run / "models" / "final.safetensors")[0], oracle.expected(plan, told)
    bits = [name for name, array in expected.model.items() if found[name].tobytes() != array.tobytes()]
    # The run names the first absences one by one, and counts those that are beyond.
    counted = any(event["event"] == "more_missed" for event in events)
    return [*oracle.untold(told), *([] if counted else oracle.unnamed(told, events)), *bits]
