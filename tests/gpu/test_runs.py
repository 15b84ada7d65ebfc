"""Whole runs whose clients train on a real GPU: the bits of an oracle on the same GPU, and real processes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node.devices import prepare
from fedgsp_node.tasks import load_task
from tests.support import cluster
from tests.support.cluster import Finished, play
from tests.support.gated_task import gated_settings, host
from tests.support.gpu import GPU, NEEDS_GPU
from tests.support.managers_here import managers_here
from tests.support.processes import node, resumed, top_server
from tests.support.reference import Reference, assert_same_bits
from tests.support.short_profiles import short_profile
from top_server.record.model_files import load
from top_server.schemes import SCHEMES

pytestmark = [*NEEDS_GPU, pytest.mark.timeout(180)]
EIGHT = range(8)
TASK = {"clients": "24"}
LAYOUTS: dict[str, list[Sequence[int]]] = {
    "one node": [EIGHT],
    "mixed up": [[7, 0, 3], [1, 2], [4, 5, 6]],
}
DEVICE = str(GPU)
DIGITS = ["--task-option", "clients=8", "--beta", "2", "--sampling-rate", "1", "--seed", "3"]


def on_the_gpu(nodes: Sequence[NodeSettings]) -> list[NodeSettings]:
    return [dataclasses.replace(one, device=DEVICE) for one in nodes]


def reference(**changes: Any) -> Reference:
    prepare(GPU)
    given = {"rounds": 2, "beta": 2, "sampling_rate": 1.0, "device": GPU, **changes}
    return Reference(load_task("digits", TASK), EIGHT, **given)


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    return cluster.settings(tmp_path / "run", **{"task_option": TASK, "min_clients": 8, **changes})


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_fedgsp_has_the_bits_of_the_oracle(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    expected = reference().play_fedgsp()
    run = await play(settings(tmp_path), on_the_gpu(cluster.nodes(*LAYOUTS[layout], clients="24")))
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)
    (joined, *_) = run.of_kind("node_joined")
    assert DEVICE in joined["device"]


def adamw(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1)


async def test_fedavg_with_adamw_has_the_bits_of_the_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    how: dict[str, Any] = {"learning_rate": 0.003, "clip_norm": 0.5, "accumulate": 2, "local_epochs": 2}
    expected = reference(optimizer=adamw, **how).play_fedavg()
    adam = {"optimizer": "adamw", "optimizer_option": {"weight_decay": "0.1"}}
    config = settings(tmp_path, scheme="fedavg", **adam, **how)
    run = await play(config, on_the_gpu(cluster.nodes(*LAYOUTS["mixed up"], clients="24")))
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_scheme_runs_with_the_same_bits_each_time(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    runs: list[Finished] = []
    for number, hosts in enumerate([([0, 3, 4], [1, 2]), ([0, 1, 2, 3, 4],)]):
        (tmp_path / str(number)).mkdir()
        short = {"rounds": 2, "profile_option": short_profile(scheme)}
        config = gated_settings(tmp_path / str(number), scheme=scheme, keep_models="all", **short)
        runs.append(await play(config, on_the_gpu([host(f"n{at}", *ids) for at, ids in enumerate(hosts)])))
    assert models(runs[0].directory.models) == models(runs[1].directory.models) != {}
    for run in runs:
        assert [row["round"] for row in run.rows] == [1, 2]
        for kind in ("client_skipped", "group_failed", "update_missing", "not_evaluated"):
            assert not run.of_kind(kind)


def models(folder: Path) -> dict[str, str]:
    """The bits of every model by the name of its file."""
    return {path.name: repr({n: a.tobytes() for n, a in load(path)[0].items()}) for path in folder.glob("*.safe*")}


async def test_local_nodes_take_the_gpu_and_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Real processes, started by one command, twice; the second is killed after a round and resumed."""
    nodes = ["--local-nodes", "2", "--device", "auto", "--clients", "8"]
    flags = [*nodes, "--rounds", "4", "--keep-models", "all", *DIGITS]
    async with top_server(tmp_path, *flags, "--run-dir", str(tmp_path / "whole")) as run:
        joined = await run.event("node_joined", 120)
        assert torch.cuda.get_device_name(0) in joined["device"]
        assert await run.ended(120) == 0
    async with top_server(tmp_path, *flags, "--run-dir", str(tmp_path / "cut")) as run:
        await run.event("round_finished", 120, round=2)
        for process in run.family():
            process.kill()
    async with resumed(tmp_path / "cut") as run:
        assert await run.ended(120) == 0
    assert models(tmp_path / "whole" / "models") == models(tmp_path / "cut" / "models") != {}


async def test_a_node_without_and_one_with_a_gpu_train_together(tmp_path: Path) -> None:
    async with top_server(tmp_path, "--rounds", "2", "--insecure", "--min-nodes", "2", *DIGITS) as run:
        address = (await run.event("listening"))["address"]
        common = ["--insecure", "--task-option", "clients=8"]
        async with (
            node(tmp_path, address, *common, "--clients", "0-3", "--device", DEVICE, name="fast"),
            node(tmp_path, address, *common, "--clients", "4-7", name="slow"),
        ):
            assert await run.ended(120) == 0
    told = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    devices = {one["node"]: one["device"] for one in told if one["event"] == "node_joined"}
    assert devices["slow"] == "cpu"
    assert devices["fast"].startswith(DEVICE)
