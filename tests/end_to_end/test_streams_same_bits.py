"""FedMMD and FedFusion equal an independent implementation with two modules, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.reference import State, assert_same_bits
from tests.support.reference_streams import Smoothing, StreamReference
from tests.support.trainings import numbers

SEVEN = range(7)
#: Seven unlike clients, of which four train in a round.
TASK: dict[str, Any] = {"clients": "7", "alpha": "0.5"}
COMMON: dict[str, Any] = {"rounds": 3, "learning_rate": 0.1, "batch_size": 40, "sampling_rate": 0.5}
BLOBS = "tests.support.blobs_task:Blobs"
#: Name -> scheme, options of its training. A strong pull soon differs from plain SGD.
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "fedmmd": ("fedmmd", {"lambda": "5"}),
    "fedmmd, features": ("fedmmd", {"lambda": "5", "of": "features"}),
    "conv": ("fedfusion", {}),
    "multi": ("fedfusion", {"operator": "multi"}),
    "single": ("fedfusion", {"operator": "single"}),
    "conv, previous": ("fedfusion", {"evaluation": "previous"}),
    "multi, previous": ("fedfusion", {"operator": "multi", "evaluation": "previous"}),
}
#: The others are played on demand.
OFTEN = ("fedmmd, features", "conv")


@functools.cache
def oracle(name: str) -> tuple[StreamReference, list[State]]:
    training, options = CASES[name]
    reference = StreamReference(
        load_task("digits", TASK),
        SEVEN,
        training=training,
        numbers=numbers(training, options),
        merge=Smoothing(),
        **COMMON,
    )
    return reference, reference.play_fedavg()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in CASES]
)
async def test_the_scheme_gives_the_oracles_bits_and_accuracies(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "conv":  # one case has managers in processes of their own
        managers_here(monkeypatch)
    scheme, options = CASES[name]
    config = settings(
        tmp_path / "run", **COMMON, scheme=scheme, training_option=options, task_option=TASK, min_clients=7
    )
    run = await play(config, nodes([6, 0, 3], [1, 2], [4, 5], **TASK))
    reference, expected = oracle(name)
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 4]
    assert [row["accuracy"] for row in run.rows] == [pytest.approx(reference.accuracy(state)) for state in expected]
    assert [row["loss"] for row in run.rows] == [pytest.approx(reference.loss(state)) for state in expected]


def test_every_way_to_train_makes_another_model() -> None:
    ways = [name for name in CASES if "previous" not in name]
    assert len({oracle(name)[1][-1]["8.weight"].tobytes() for name in ways}) == len(ways)
    for name in ("multi", "single"):
        gammas = [state["fusion_gamma"] for state in oracle(name)[1]]
        assert all(gamma.any() for gamma in gammas)
        # what one round adds is a tenth of what clients learned
        assert abs(gammas[0]).max() < 0.05


@pytest.mark.parametrize("operator", ["conv", "multi"])
def test_the_model_before_changes_evaluations_and_no_training(operator: str) -> None:
    (own, states), (previous, others) = oracle(operator), oracle(f"{operator}, previous")
    for before, state, other in zip([own.initial(), *states], states, others, strict=False):
        assert_same_bits({name: other[name] for name in state}, state)
        received = [array for name, array in before.items() if not name.startswith("fusion_")]
        assert all((other[f"fusion_previous_{number}"] == array).all() for number, array in enumerate(received))
    assert own.loss(states[0]) != previous.loss(others[0])


async def test_a_task_without_an_extractor_is_refused_with_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await play(
            settings(tmp_path / "run", scheme="fedfusion", task=BLOBS, task_option={}),
            [dataclasses.replace(nodes([0, 1])[0], task=BLOBS, task_option={})],
        )
    (refused,) = [error for error in caught.value.exceptions if isinstance(error, ConfigError)]
    what = "training fedfusion needs the features of the model, and the task names no layer that returns them"
    assert refused.what == what
    assert refused.remedy.startswith("set `extractor` in the task to the name of the layer that returns the features")
