"""FedCollab and what it is compared with equal an independent implementation, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import Finished, nodes, play, settings
from support.managers_here import managers_here
from support.reference_coalitions import CoalitionReference
from support.reference_discriminators import Discriminators
from support.reference_groups import Played, assert_equals

from fedgsp.local_training import TRAININGS
from fedgsp_node.tasks import load_task
from top_server.config import RunConfig

SEVEN = range(7)
#: The second one with managers that are processes of their own.
LAYOUTS = {"one node": [SEVEN], "mixed up": [[6, 0, 3], [1, 2], [4, 5]]}
#: The first seven of many small and unlike clients: 8 to 128 samples.
TASK = {"clients": "24", "alpha": "0.2"}
COMMON = {"rounds": 3, "learning_rate": 0.05, "learning_rate_decay": 0.9, "batch_size": 40}

#: 0 and 1, and 2 to 4, are alike, and 6 is like nobody.
DISTANCES = np.full((7, 7), 0.9)
for together in ([0, 1], [2, 3, 4, 5]):
    DISTANCES[np.ix_(together, together)] = 0.02
np.fill_diagonal(DISTANCES, 0.0)
SOLVER = {"c": "4", "restarts": "10"}

Oracle = Callable[[CoalitionReference], list[Played]]


@dataclasses.dataclass(frozen=True)
class Case:
    """What a run is told, and how the oracle plays it."""

    scheme: str
    oracle: Oracle
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    training: str | None = None
    aggregation: str | None = None
    numbers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def together(oracle: CoalitionReference) -> list[Played]:
    return oracle.play_together()


def coalitions(oracle: CoalitionReference) -> list[Played]:
    return oracle.play_fedcollab(DISTANCES)


CASES: dict[str, Case] = {
    "fedprox": Case("fedprox", together, training="fedprox"),
    "fednova": Case("fednova", together, aggregation="fednova"),
    "finetune": Case("finetune", together, training="finetune"),
    "per-fedavg": Case("per-fedavg", together, training="per-fedavg"),
    "pfedme": Case("pfedme", together, training="pfedme"),
    "ditto": Case("ditto", together, training="ditto"),
    "fedcluster": Case(
        "fedcluster", lambda oracle: oracle.play_fedcluster(), {"eps1": "9", "eps2": "0.5", "min_round": "0"}
    ),
    "fesem": Case("fesem", lambda oracle: oracle.play_fesem(3), {"models": "3"}),
    "kmeans": Case("kmeans", lambda oracle: oracle.play_kmeans(2), {"clusters": "3", "prior_epochs": "2"}),
    "fedcollab": Case("fedcollab", coalitions, SOLVER),
    # options other than the defaults
    "fedcollab, fedprox": Case("fedcollab", coalitions, SOLVER, "fedprox", numbers={"mu": "0.5"}),
    "fedcollab, fednova": Case("fedcollab", coalitions, SOLVER, aggregation="fednova"),
    "fedcollab, fedprox, fednova": Case("fedcollab", coalitions, SOLVER, "fedprox", "fednova"),
    "fedcollab, finetune": Case("fedcollab", coalitions, SOLVER, "finetune", numbers={"steps": "3"}),
    "fedcollab, per-fedavg": Case("fedcollab", coalitions, SOLVER, "per-fedavg", numbers={"steps": "2"}),
    "fedcollab, pfedme": Case(
        "fedcollab", coalitions, SOLVER, "pfedme", numbers={"lambda": "2", "personal_steps": "2", "personal_rate": "0.2"}
    ),
    "fedcollab, ditto": Case("fedcollab", coalitions, SOLVER, "ditto", numbers={"lambda": "0.5"}),
}
#: Options that the profile reads, not the grouping.
OF_PROFILES = ("models", "prior_epochs")


@functools.cache
def expected(name: str) -> list[Played]:
    case = CASES[name]
    training = case.training or "sgd"
    return case.oracle(
        CoalitionReference(
            load_task("digits", TASK),
            SEVEN,
            rounds=3,
            learning_rate=0.05,
            decay=0.9,
            batch_size=40,
            options={key: value for key, value in case.options.items() if key not in OF_PROFILES},
            training=training,
            numbers={**TRAININGS[training], **{key: float(value) for key, value in case.numbers.items()}},
            aggregation=case.aggregation or "mean",
        )
    )


def configured(tmp_path: Path, name: str, **changes: Any) -> RunConfig:
    case = CASES[name]
    options = dict(case.options)
    if case.scheme == "fedcollab":
        recorded = {"clients": list(SEVEN), "distances": DISTANCES.tolist()}
        (tmp_path / "distances.json").write_text(json.dumps(recorded), encoding="utf-8")
        options["distances"] = str(tmp_path / "distances.json")
    quick = {
        **COMMON,
        "scheme": case.scheme,
        "grouping_option": options,
        # a row's own training is not told again
        "training": case.training if case.scheme == "fedcollab" else None,
        "training_option": dict(case.numbers),
        "aggregation": case.aggregation if case.scheme == "fedcollab" else None,
        "task_option": TASK,
        "keep_models": "last",
    }
    return settings(tmp_path / "run", **{**quick, **changes})


async def played(config: RunConfig, layout: str, monkeypatch: pytest.MonkeyPatch) -> Finished:
    if layout == "one node":
        managers_here(monkeypatch)
    run = await play(config, nodes(*LAYOUTS[layout], **TASK))
    assert not run.of_kind("client_skipped")
    return run


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
async def test_every_scheme_gives_the_oracles_bits_in_every_layout(
    tmp_path: Path, name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await played(configured(tmp_path, name), layout, monkeypatch)
    assert_equals(run, expected(name))
    assert not run.of_kind("discriminators")


def test_what_is_compared_is_not_trivial() -> None:
    """Clusters move or split, coalitions are of several sizes, and personal models are served, not the shared ones."""
    assert [len(one.partition) for one in expected("fedcluster")] == [1, 2, 3]
    assert expected("fesem")[1].partition != expected("fesem")[2].partition
    assert len(expected("kmeans")[0].partition) == 3
    assert expected("fedcollab")[0].partition == [[0, 1], [2, 3, 4, 5], [6]]
    accuracies = {name: tuple(expected(name)[2].accuracy.values()) for name in CASES}
    assert len(set(accuracies.values())) > len(accuracies) - 2, accuracies


# The discriminators

LEARNING = {"exchanges": "21", "judge_every": "5", "patience": "2", "discriminator_rate": "0.2", "discriminator_batch": "8"}


@functools.cache
def told_apart(kind: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    oracle = Discriminators(load_task("digits", TASK), SEVEN, 21, 8, 0.2, 5, 2)
    return oracle.shared() if kind == "shared" else oracle.pairwise(), oracle.left


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["pairwise", "shared"])
async def test_discriminators_find_the_oracles_distances_and_coalitions(
    tmp_path: Path, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distances, left = told_apart(kind)
    options = {**LEARNING, "c": "5", "restarts": "10", "distance": kind}
    config = configured(tmp_path, "fedcollab", grouping_option=options, rounds=1)
    run = await played(config, layout, monkeypatch)
    found = json.loads(run.directory.distances.read_text(encoding="utf-8"))
    assert found["clients"] == list(SEVEN)
    print(np.array(found["distances"]) - distances, distances, run.rows[0]["partition"], left)
    np.testing.assert_allclose(found["distances"], distances, rtol=0, atol=1e-12)
    assert [(event["exchanges"], event["left"]) for event in run.of_kind("discriminators")] == left
    task = load_task("digits", TASK)
    oracle = CoalitionReference(task, SEVEN, rounds=1, options={"c": "5", "restarts": "10"})
    coalitions = oracle.coalitions(distances)
    assert [row["partition"] for row in run.rows] == [coalitions]
    assert 1 < len(coalitions) < 7
