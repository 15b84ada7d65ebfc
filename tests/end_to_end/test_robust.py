"""Medians and trimmed means, of clients in their groups and of groups, equal the oracle bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import play
from tests.support.gated_task import GatedBlobs, gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, assert_same_bits, median

#: Of five models, who trims two at either end leaves the median.
OPTIONS = {"median": {}, "trimmed-mean": {"trim": "0.4"}}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["aggregation", "merge"])
async def test_medians_of_clients_and_of_groups_equal_the_oracle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    managers_here(monkeypatch)
    scheme, grows = ("fedavg", {}) if kind == "aggregation" else ("fedgsp", {"beta": 5})
    common: dict[str, Any] = {"rounds": 2, "sampling_rate": 1.0, "batch_size": 8, "learning_rate": 0.05, **grows}
    settings = {f"{kind}_option": OPTIONS[name], "learning_rate_decay": 1.0, "keep_models": "all", "min_nodes": 2}
    config = gated_settings(tmp_path, scheme=scheme, **{kind: name}, **common, **settings)
    run = await play(config, [host("n0", 0, 3, 4), host("n1", 1, 2)])
    oracle = Reference(GatedBlobs(), range(5), merge=median, **common)
    expected = oracle.play_fedavg() if kind == "aggregation" else oracle.play_fedgsp()
    for number, model in enumerate(expected, 1):
        assert_same_bits(run.model(number), model)
