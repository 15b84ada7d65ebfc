"""Models of which a part is in bfloat16 and a part is frozen, in real runs, against plain torch, bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.chaos.slow_digits import SlowDigits
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.dtypes import BFLOAT16
from tests.support import cluster
from tests.support.cluster import Finished, play
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, State, assert_same_bits, median
from tests.support.relaying import Relaying, model_of

NAME = "benchmarks.chaos.slow_digits:SlowDigits"
TASK: dict[str, Any] = {"clients": "24", "variant": "both"}
HOSTS = ([7, 0, 3], [1, 2], [4, 5, 6])
FROZEN = ("0.weight", "0.bias")


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


async def played(tmp_path: Path, **changes: Any) -> Finished:
    given = {"task": NAME, "task_option": TASK, "min_clients": 8, "rounds": 2, "sampling_rate": 1.0, **changes}
    config: RunConfig = cluster.settings(tmp_path / "run", **given)
    return await play(config, [dataclasses.replace(node, task=NAME) for node in cluster.nodes(*HOSTS, **TASK)])


def reference(kind: type[Reference] = Reference, **changes: Any) -> Any:
    given = {"rounds": 2, "beta": 2, "sampling_rate": 1.0, "constants": FROZEN, **changes}
    return kind(SlowDigits(24, variant="both"), range(8), **given)


def travelling(state: State) -> State:
    return {name: array for name, array in model_of(state).items() if name not in FROZEN}


async def test_a_relay_with_relayed_state_has_the_oracles_bits_and_files_in_bfloat16(tmp_path: Path) -> None:
    expected = reference(
        Relaying, learning_rate=0.003, optimizer=lambda p, rate: torch.optim.AdamW(p, lr=rate)
    ).play_fedgsp()
    run = await played(tmp_path, optimizer="adamw", optimizer_state="relayed", learning_rate=0.003)
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), travelling(state))
    assert {name for name, array in run.model(2).items() if array.dtype == BFLOAT16} == {"8.weight", "8.bias"}
    saved = load_file(run.directory.models / "final.safetensors")
    assert saved["8.weight"].dtype == torch.bfloat16
    assert torch.equal(saved["8.weight"].float(), torch.from_numpy(run.model(2)["8.weight"].astype(np.float32)))


@pytest.mark.parametrize("wire", ["exact", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_a_mean_of_parts_in_bfloat16_is_rounded_once(tmp_path: Path, wire: str) -> None:
    expected = reference(wire_dtype=wire).play_fedavg()[-1]
    run = await played(tmp_path, scheme="fedavg", wire_dtype=wire)
    assert_same_bits(run.model(2), travelling(expected))
    (size,) = {row["d_comm_bytes"] for row in run.rows}
    bytes_of = {name: array.nbytes for name, array in travelling(expected).items()}
    halved = {
        name: size // 2 if wire == "bfloat16" and not name.startswith("8.") else size
        for name, size in bytes_of.items()
    }
    padded = sum(-(-one // 8) * 8 for one in halved.values())
    assert size == 2 * 8 * padded


@pytest.mark.slow
async def test_a_median_of_parts_in_bfloat16_has_the_oracles_bits(tmp_path: Path) -> None:
    expected = reference(merge=median).play_fedavg()[-1]
    run = await played(tmp_path, scheme="fedavg", aggregation="median")
    assert_same_bits(run.model(2), travelling(expected))
