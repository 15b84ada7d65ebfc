"""Weights that travel as bfloat16: the oracle's bits whichever way they go, and half the bytes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, State, assert_same_bits
from tests.support.reference_groups import GroupReference, assert_equals

#: The first eight of many small clients.
TASK = {"clients": "24"}
LAYOUTS: dict[str, list[Sequence[int]]] = {
    "two nodes": [range(4), range(4, 8)],
    "mixed up": [[7, 0, 3], [1, 2], [4, 5, 6]],
}
#: Scheme and relay mode played with managers that are processes of their own.
BY_PROCESSES = ("fedgsp", "manager")


@functools.cache
def expected(scheme: str) -> State:
    oracle = Reference(load_task("digits", TASK), range(8), 1, beta=2, sampling_rate=1.0, wire_dtype="bfloat16")
    (state,) = {"fedgsp": oracle.play_fedgsp, "fedavg": oracle.play_fedavg}[scheme]()
    return state


@pytest.mark.parametrize("scheme", ["fedgsp", "fedavg"])
@pytest.mark.parametrize(
    ("layout", "relay"), [pytest.param("two nodes", "auto", marks=pytest.mark.slow), ("mixed up", "manager")]
)
async def test_every_layout_and_relay_mode_gives_the_oracles_bits(
    tmp_path: Path, scheme: str, layout: str, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (scheme, relay) != BY_PROCESSES:
        managers_here(monkeypatch)
    changes: dict[str, Any] = {"task_option": TASK, "min_clients": 8, "wire_dtype": "bfloat16"}
    config = settings(tmp_path / "run", scheme=scheme, relay=relay, rounds=1, **changes)
    run = await play(config, nodes(*LAYOUTS[layout], clients=TASK["clients"]))
    assert_same_bits(run.model(1), expected(scheme))
    assert not any(np.any(array.view(np.uint32) & 0xFFFF) for array in run.model(1).values())


async def test_updates_and_heads_stay_exact_and_all_else_is_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    task: dict[str, Any] = {"clients": "20", "alpha": "0.2"}
    rates: dict[str, Any] = {"rounds": 2, "learning_rate": 0.05, "batch_size": 40, "wire_dtype": "bfloat16"}
    oracle = GroupReference(load_task("digits", task), range(7), options={"alpha": "20"}, **rates)
    changes = {"grouping_option": {"alpha": "20"}, "task_option": task, "keep_models": "last", "min_clients": 7}
    run = await play(settings(tmp_path / "run", scheme="hcct-p", **changes, **rates), nodes(range(7), **task))
    played = oracle.play_hcct(personal=True)
    assert_equals(run, played)
    assert {len(group) == 1 for group in played[1].partition} == {True, False}


async def test_a_model_takes_half_the_bytes_on_every_way_and_in_the_cost_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    config = settings(tmp_path / "run", rounds=1, beta=1, wire_dtype="bfloat16", min_clients=3)
    run = await play(config, nodes([0], [1], [2]))
    (row,) = run.rows
    half = sum(array.nbytes for array in run.model(1).values()) / 2
    # the start model comes down, the result goes up, and two nodes hand over to each other
    assert (row["bytes_direct"], row["bytes_relayed"]) == (2 * half, 2 * half)
    assert row["d_comm_bytes"] == 3 * 2 * half
