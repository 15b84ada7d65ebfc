"""Optimiser state that is relayed with the model, in real runs, against plain torch, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedgsp.settings.run import RunConfig
from fedgsp_node.tasks import load_task
from tests.support import cluster
from tests.support.cluster import play
from tests.support.managers_here import managers_here
from tests.support.reference import assert_same_bits
from tests.support.relaying import Relaying, model_of

TASK = {"clients": "24"}
HOSTS = ([7, 0, 3], [1, 2], [4, 5, 6])


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "adamw": ({"optimizer": "adamw"}, lambda p, rate: torch.optim.AdamW(p, lr=rate)),
    "nadam": ({"optimizer": "nadam"}, lambda p, rate: torch.optim.NAdam(p, lr=rate)),
    "momentum": (
        {"optimizer": "sgd", "optimizer_option": {"momentum": "0.9", "dampening": "0.2"}},
        lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9, dampening=0.2),
    ),
}
RUNS = [
    ("adamw", "fedgsp", "exact"),
    *[
        pytest.param(*one, marks=pytest.mark.slow)
        for one in [("momentum", "fedavg", "bfloat16"), ("nadam", "fedgsp", "bfloat16"), ("adamw", "fedavg", "exact")]
    ],
]


@pytest.mark.parametrize(("optimizer", "scheme", "wire"), RUNS)
async def test_relayed_state_has_the_oracles_bits(tmp_path: Path, optimizer: str, scheme: str, wire: str) -> None:
    chosen, make = KINDS[optimizer]
    given = {"rounds": 3, "beta": 2, "sampling_rate": 1.0, "learning_rate": 0.003, "optimizer": make}
    oracle = Relaying(load_task("digits", TASK), range(8), wire_dtype=wire, **given)
    expected = oracle.play_fedgsp() if scheme == "fedgsp" else oracle.play_fedavg()
    run = await play(settings(tmp_path, scheme=scheme, wire_dtype=wire, **chosen), cluster.nodes(*HOSTS, clients="24"))
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), model_of(state))
    size, alone = (sum(array.nbytes for array in one.values()) for one in (expected[0], model_of(expected[0])))
    assert size > 1.5 * alone
    for row in run.rows:  # the state is counted
        assert row["d_comm_bytes"] >= 2 * 8 * size // (2 if wire == "bfloat16" else 1)


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    given = {"task_option": TASK, "min_clients": 8, "rounds": 3, "learning_rate": 0.003, "sampling_rate": 1.0}
    return cluster.settings(tmp_path / "run", **{**given, "optimizer_state": "relayed", **changes})
