"""Runs whose models travel coded: the bits of runs whose models travel as they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedgsp.transfers import pipes
from tests.support.cluster import Finished, nodes, play, settings
from tests.support.managers_here import managers_here


@pytest.fixture(autouse=True)
def _through_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_allowed", True)  # restored at the end: the runs choose


async def played(folder: Path, wire: str, peers: bool, **changes: Any) -> Finished:
    config = settings(folder, wire=wire, hand_over="network", min_clients=6, **changes)
    hosts = nodes([0, 3], [1, 2], [4, 5], peers=peers)
    return await play(config, [dataclasses.replace(one, wire=wire, hand_over="network") for one in hosts])


@pytest.mark.parametrize(
    ("scheme", "peers", "changes"),
    [
        ("fedgsp", True, {}),
        pytest.param("fedgsp", False, {"wire_dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param("fedavg", False, {"sampling_rate": 1.0}, marks=pytest.mark.slow),
        pytest.param(
            "fedgsp",
            False,
            {"optimizer": "adamw", "optimizer_state": "relayed", "learning_rate": 0.001},
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_coded_run_has_the_same_bits_and_its_history_says_how_many_bytes_travelled(
    tmp_path: Path, scheme: str, peers: bool, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    raw = await played(tmp_path / "raw", "raw", peers, scheme=scheme, **changes)
    coded = await played(tmp_path / "coded", "coded", peers, scheme=scheme, **changes)
    for number in (1, 2):
        one, other = raw.model(number), coded.model(number)
        assert one.keys() == other.keys()
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    for row, beside in zip(raw.rows, coded.rows, strict=True):
        moved = row["bytes_direct"] + row["bytes_relayed"]
        assert moved == beside["bytes_direct"] + beside["bytes_relayed"]
        assert row["bytes_travelled"] == moved
        assert beside["bytes_travelled"] < moved
    # The nodes have evaluated the model from which round 2 starts, and the managers fetch it.
    second = [event for event in coded.of_kind("hop_finished") if event["round"] == 2 and event["bytes"]]
    assert {event["coding"] for event in second} == {"coded"}
    assert all(0 < event["travelled"] < event["bytes"] for event in second)
    assert {event["coding"] for event in raw.of_kind("hop_finished")} <= {"raw", ""}
