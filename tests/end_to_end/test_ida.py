"""Inverse distance aggregation, of clients and of groups, in real runs equals the oracle bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Finished, play
from tests.support.gated_task import GatedBlobs, gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.reference import State, assert_same_bits
from tests.support.reference_groups import GroupReference
from tests.support.reference_ida import ida
from tests.support.reference_optimisers import parameters_of

COMMON: dict[str, Any] = {"rounds": 2, "sampling_rate": 0.8, "batch_size": 8, "learning_rate": 0.05}
GUESS = 1 / GatedBlobs().num_classes


@dataclass
class IdaReference(GroupReference):
    times: str = "plain"
    norm: str = "l1"

    def aggregated(self, states: list[State], clients: list[int]) -> State:
        sizes = self._sizes(clients)
        factors: list[float] = [1.0] * len(clients)
        if self.times == "samples":
            factors = [float(size) for size in sizes]
        if self.times == "intrac":
            accuracies = [self._right(state, client, "train") for state, client in zip(states, clients, strict=True)]
            factors = [1 / max(accuracy, GUESS) for accuracy in accuracies]
        return ida(states, sizes, parameters_of(self.task.model()), factors, self.norm)


async def played(tmp_path: Path, scheme: str, **changes: Any) -> Finished:
    more = {"learning_rate_decay": 1.0, "keep_models": "all", "min_nodes": 2}
    config = gated_settings(tmp_path, scheme=scheme, **{**COMMON, **more, **changes})
    return await play(config, [host("n0", 0, 3, 4), host("n1", 1, 2)])


OPTIONS = [
    {},
    pytest.param({"times": "samples", "norm": "l2"}, marks=pytest.mark.slow),
    pytest.param({"times": "intrac"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_clients_weigh_what_the_oracle_says(tmp_path: Path, options: dict[str, Any]) -> None:
    run = await played(tmp_path, "ida", aggregation_option=options)
    expected = IdaReference(GatedBlobs(), range(5), **COMMON, **options).play_fedavg()
    for number, model in enumerate(expected, 1):
        assert_same_bits(run.model(number), model)


async def test_groups_weigh_what_the_oracle_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client is a group. Their buffers count by samples."""
    managers_here(monkeypatch)
    changes = {"beta": 5, "sampling_rate": 1.0}
    run = await played(tmp_path, "fedgsp", merge="ida", **changes)
    reference = IdaReference(GatedBlobs(), range(5), **{**COMMON, **changes})
    model = reference.initial()
    for number in (1, 2):
        clients = [client for (client,) in reference.sampled_groups(number)]
        model = reference.aggregated([reference.train(model, client, number) for client in clients], clients)
        assert_same_bits(run.model(number), model)
