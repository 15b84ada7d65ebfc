"""FedMMD equals an independent implementation with two modules, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.reference import assert_same_bits
from tests.support.reference_coalitions import CoalitionReference
from tests.support.trainings import numbers

SEVEN = range(7)
#: Seven unlike clients, of which four train in a round.
TASK: dict[str, Any] = {"clients": "7", "alpha": "0.5"}
COMMON: dict[str, Any] = {"rounds": 3, "learning_rate": 0.1, "batch_size": 40, "sampling_rate": 0.5}
#: Far apart from plain SGD after few steps.
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "fedmmd": ("fedmmd", {"lambda": "5"}),
    "fedmmd, features": ("fedmmd", {"lambda": "5", "of": "features"}),
}


def oracle(training: str, options: dict[str, str]) -> CoalitionReference:
    given = numbers(training, options)
    return CoalitionReference(load_task("digits", TASK), SEVEN, training=training, numbers=given, **COMMON)


@pytest.mark.parametrize("name", CASES)
async def test_the_scheme_gives_the_oracles_bits(tmp_path: Path, name: str) -> None:
    scheme, options = CASES[name]
    config = settings(
        tmp_path / "run", **COMMON, scheme=scheme, training_option=options, task_option=TASK, min_clients=7
    )
    run = await play(config, nodes([6, 0, 3], [1, 2], [4, 5], **TASK))
    expected = oracle(scheme, options).play_fedavg()
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 4]
    plain = oracle("sgd", {}).play_fedavg()
    assert any((plain[-1][tensor] != array).any() for tensor, array in expected[-1].items() if tensor in plain[-1])
