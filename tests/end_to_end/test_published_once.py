"""Noise from the secrets of the nodes: whatever is lost in a round, every client's result is drawn once."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_store import ModelStore
from tests.support.cluster import nodes, play, settings
from tests.support.outgoing_steps import DRAWS, forget, install
from tests.support.processes import assert_gone, resumed, top_server
from top_server.record.journal import Line

NOISY: dict[str, Any] = {"outgoing": ("clip", "noise"), "outgoing_option": {"clip.norm": "5", "noise.scale": "0.001"}}


@pytest.fixture
def draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that tells of every draw; the steps are installed for all processes."""
    path = tmp_path / "draws"
    path.touch()
    monkeypatch.setenv(DRAWS, str(path))
    install(tmp_path / "packages", monkeypatch)
    yield path
    monkeypatch.undo()
    forget()


def drawn(path: Path) -> dict[tuple[int, int], list[str]]:
    """The digests of the results that were drawn, by round and client."""
    found = defaultdict(list)
    for line in path.read_text().splitlines():
        number, client, digest = line.split()
        found[int(number), int(client)].append(digest)
    return found


@pytest.mark.parametrize("scheme", [pytest.param("fedavg", marks=pytest.mark.slow), "fedgsp"])
async def test_a_manager_that_is_killed_makes_no_client_draw_twice(
    tmp_path: Path, draws: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    managers: list[int] = []
    killed: list[int] = []
    published: dict[tuple[int, int], set[str]] = defaultdict(set)
    ids: set[str] = set()
    put = ModelStore.put

    def watch(event: Line) -> None:
        if event["event"] == "manager_spawned":
            managers.append(event["pid"])
        if event["event"] == "hop_finished" and event["round"] == 2 and not killed:
            killed.append(managers[0])
            os.kill(managers[0], SIGKILL)

    def watched(self: ModelStore, model_id: str, weights: Weights) -> None:
        """Parallel results are named RUN/ROUND/GROUP/parallel/CLIENT.ATTEMPT."""
        put(self, model_id, weights)
        if "/parallel/" in model_id and model_id not in ids:
            ids.add(model_id)
            _, number, _, _, client = model_id.split("/")
            published[int(number), int(client.partition(".")[0])].add(weights.digest.hex())

    monkeypatch.setattr(ModelStore, "put", watched)
    hosts = [
        dataclasses.replace(host, state_dir=tmp_path / f"state {number}")
        for number, host in enumerate(nodes([0, 2, 4, 6], [1, 3, 5, 7]))
    ]
    config = settings(tmp_path / "run", scheme=scheme, rounds=3, sampling_rate=1.0, **NOISY)
    run = await play(config, hosts, on_event=watch)
    assert run.of_kind("manager_lost")
    assert [row["clients_trained"] for row in run.rows][:2] == [8, 8]
    found = drawn(draws)
    assert all(len(digests) == 1 for digests in found.values())
    assert {client for number, client in found if number == 2} == set(range(8))
    if scheme == "fedavg":
        assert {key: set(digests) for key, digests in found.items()} == published
        again = [model_id for model_id in ids if not model_id.endswith(".0")]
        assert again


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_a_resumed_run_gets_the_results_that_were_published_before(tmp_path: Path, draws: Path) -> None:
    flags = ["--run-dir", str(tmp_path / "run"), "--scheme", "fedavg", "--rounds", "3", "--task-option", "clients=6"]
    flags += ["--local-nodes", "2", "--clients", "6", "--outgoing", "clip", "--outgoing", "noise"]
    flags += ["--outgoing-option", "clip.norm=5", "--outgoing-option", "noise.scale=0.001", "--sampling-rate", "1"]
    async with top_server(tmp_path, *flags) as server:
        await server.event("round_finished", round=1)
        await server.event("hop_finished", round=2)
        family = server.family()
        server.send(SIGKILL)
        await assert_gone(family)
    before = drawn(draws)
    assert any(number == 2 for number, _ in before)
    async with resumed(tmp_path / "run") as server:
        assert await server.ended(120) == 0, server.errors
        assert [event["round"] for event in server.events if event["event"] == "round_finished"][-1] == 3
    after = drawn(draws)
    assert set(after) == {(number, client) for number in (1, 2, 3) for client in range(6)}
    assert all(len(digests) == 1 for digests in after.values())
    logs = "".join(path.read_text() for path in (tmp_path / "run").rglob("node-*.log"))
    assert "round=2" in logs
    assert "gets its published result again" in logs
