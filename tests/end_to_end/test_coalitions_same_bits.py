"""FedCollab and what it is compared with equal an independent implementation, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.discriminators import ESTIMATES
from fedgsp.settings.run import RunConfig
from fedgsp_node.tasks import load_task
from tests.support.cluster import Finished, nodes, play, settings
from tests.support.coming_and_going import NEW, RESTARTED, play_with_a_restart, play_with_newcomers
from tests.support.gated_task import GatedBlobs
from tests.support.managers_here import managers_here
from tests.support.option_kinds import by_kind
from tests.support.reference_coalitions import CoalitionReference
from tests.support.reference_discriminators import Discriminators
from tests.support.reference_groups import Played, assert_equals
from tests.support.trainings import numbers

SEVEN = range(7)
LAYOUTS: dict[str, list[Sequence[int]]] = {"one node": [SEVEN], "mixed up": [[6, 0, 3], [1, 2], [4, 5]]}
#: The first seven of many small and unlike clients: 8 to 128 samples.
TASK: dict[str, Any] = {"clients": "24", "alpha": "0.2"}
COMMON: dict[str, Any] = {"rounds": 3, "learning_rate_decay": 0.9, "batch_size": 40}

#: 0 and 1, and 2 to 4, are alike, and 6 is like nobody.
DISTANCES = np.full((7, 7), 0.9)
for alike in ([0, 1], [2, 3, 4, 5]):
    DISTANCES[np.ix_(alike, alike)] = 0.02
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
    rate: float = 0.05


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
        "fedcluster", lambda oracle: oracle.play_fedcluster(), {"eps1": "0.4", "eps2": "0.02", "min_round": "0"}
    ),
    # at lower rates nobody comes nearer to another model than to that which it started from
    "fesem": Case("fesem", lambda oracle: oracle.play_fesem(3), {"models": "3"}, rate=1.0),
    "kmeans": Case("kmeans", lambda oracle: oracle.play_kmeans(2), {"clusters": "3", "prior_epochs": "2"}),
    "fedcollab": Case("fedcollab", coalitions, SOLVER),
    # options other than the defaults
    "fedcollab, fedprox": Case("fedcollab", coalitions, SOLVER, "fedprox", numbers={"mu": "0.5"}),
    "fedcollab, fednova": Case("fedcollab", coalitions, SOLVER, aggregation="fednova"),
    "fedcollab, fedprox, fednova": Case("fedcollab", coalitions, SOLVER, "fedprox", "fednova"),
    "fedcollab, finetune": Case("fedcollab", coalitions, SOLVER, "finetune", numbers={"steps": "3"}),
    "fedcollab, per-fedavg": Case("fedcollab", coalitions, SOLVER, "per-fedavg", numbers={"steps": "2"}),
    "fedcollab, pfedme": Case(
        "fedcollab",
        coalitions,
        SOLVER,
        "pfedme",
        numbers={"lambda": "2", "personal_steps": "2", "personal_rate": "0.2"},
    ),
    "fedcollab, ditto": Case("fedcollab", coalitions, SOLVER, "ditto", numbers={"lambda": "0.5"}),
    "fedcollab, own-head": Case("fedcollab", coalitions, SOLVER, "own-head"),
}
#: Played with managers that are processes of their own, in one layout.
BY_PROCESSES = ("fednova", "fedcollab")
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
            learning_rate=case.rate,
            decay=0.9,
            batch_size=40,
            options={key: value for key, value in case.options.items() if key not in OF_PROFILES},
            training=training,
            numbers=numbers(training, case.numbers),
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
        "learning_rate": case.rate,
        "scheme": case.scheme,
        **by_kind(options),
        # a row's own training is not told again
        "training": case.training if case.scheme == "fedcollab" else None,
        "training_option": dict(case.numbers),
        "aggregation": case.aggregation if case.scheme == "fedcollab" else None,
        "task_option": TASK,
        "keep_models": "last",
        "min_clients": 7,
    }
    return settings(tmp_path / "run", **{**quick, **changes})


#: One of each kind of state also without a way between nodes.
ON_ONE_NODE = ("fednova", "ditto", "fedcollab", "fedcollab, pfedme", "fesem")


async def played(config: RunConfig, layout: str) -> Finished:
    run = await play(config, nodes(*LAYOUTS[layout], **TASK))
    assert not run.of_kind("client_skipped")
    return run


#: Their coalitions and their ways to train are each played in another case.
SELDOM = tuple(f"fedcollab, {name}" for name in ("fedprox", "fednova", "finetune", "per-fedavg", "pfedme", "ditto"))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(pytest.param(name, "mixed up", marks=[pytest.mark.slow] if name in SELDOM else []) for name in CASES),
        *(pytest.param(name, "one node", marks=pytest.mark.slow) for name in ON_ONE_NODE),
    ],
)
async def test_every_scheme_gives_the_oracles_bits_however_clients_are_hosted(
    tmp_path: Path, name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in BY_PROCESSES or layout == "one node":
        managers_here(monkeypatch)
    run = await played(configured(tmp_path, name), layout)
    assert_equals(run, expected(name))
    assert not run.of_kind("discriminators")


def test_the_partitions_compared_are_not_trivial() -> None:
    """Clusters split or move, and coalitions are of several sizes."""
    assert [len(one.partition) for one in expected("fedcluster")] == [1, 2, 3]
    assert expected("fesem")[0].partition != expected("fesem")[1].partition
    assert len(expected("kmeans")[0].partition) == 3
    assert expected("fedcollab")[0].partition == [[0, 1], [2, 3, 4, 5], [6]]


def test_every_way_to_train_makes_other_models_or_serves_clients_otherwise() -> None:
    inside = [name for name in CASES if name.startswith("fedcollab")]
    models = {name: b"".join(a.tobytes() for a in expected(name)[2].models[2].values()) for name in inside}
    plain = [name for name in inside if models[name] == models["fedcollab"]]
    assert plain == ["fedcollab", "fedcollab, finetune", "fedcollab, ditto", "fedcollab, own-head"]
    assert len(set(models.values())) == len(inside) - 3
    reference = CoalitionReference(load_task("digits", TASK), SEVEN, rounds=3)
    for name in (*inside, "finetune", "per-fedavg", "pfedme", "ditto"):
        last = expected(name)[2]
        as_they_are = reference.served([], last.models, 3).accuracy
        personalised = any(way in name for way in ("finetune", "per-fedavg", "pfedme", "ditto", "own-head"))
        assert (last.accuracy != as_they_are) == personalised, name


# The discriminators

#: As the run is told, and as the oracle is.
LEARNING = {
    "exchanges": "21",
    "judge_every": "5",
    "patience": "2",
    "discriminator_rate": "0.2",
    "discriminator_batch": "8",
}
KINDS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "pairwise": ({}, {"estimate": "cross-fitted"}),
    "largest": ({"estimate": "largest"}, {"estimate": "largest"}),
    "shared": (
        {"distance": "shared", "feature_scale": "0.5", "local_steps": "2"},
        {"scale": 0.5, "steps": 2, "estimate": "cross-fitted"},
    ),
}
PLACING = {"c": "5", "restarts": "10"}


@functools.cache
def told_apart(kind: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    oracle = Discriminators(load_task("digits", TASK), SEVEN, 21, 8, 0.2, 5, 2, **KINDS[kind][1])
    return oracle.shared() if kind == "shared" else oracle.pairwise(), oracle.left


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param("pairwise", "one node", marks=pytest.mark.slow),
        pytest.param("pairwise", "mixed up", marks=pytest.mark.slow),
        pytest.param("largest", "mixed up", marks=pytest.mark.slow),
        ("shared", "one node"),
    ],
)
async def test_discriminators_find_the_oracles_distances_and_coalitions(
    tmp_path: Path, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distances, left = told_apart(kind)
    config = configured(tmp_path, "fedcollab", rounds=1, **by_kind({**LEARNING, **PLACING, **KINDS[kind][0]}))
    if layout == "one node":
        managers_here(monkeypatch)
    run = await played(config, layout)
    found = json.loads(run.directory.distances.read_text(encoding="utf-8"))
    assert found["clients"] == list(SEVEN)
    np.testing.assert_allclose(found["distances"], distances, rtol=0, atol=1e-12)
    assert [(event["exchanges"], event["left"]) for event in run.of_kind("discriminators")] == left
    oracle = CoalitionReference(load_task("digits", TASK), SEVEN, rounds=1, options=PLACING)
    coalitions = oracle.coalitions(distances)
    assert [row["partition"] for row in run.rows] == [coalitions]
    assert 1 < len(coalitions) < 7


@pytest.mark.slow
def test_some_discriminators_stop_before_others() -> None:
    assert told_apart("largest")[1] == [(1, 21), (6, 21), (11, 21), (16, 12), (21, 4)]


# Clients that come and go

#: Options of a short measurement of distances.
OF_BLOBS = {
    "exchanges": "3",
    "judge_every": "1",
    "discriminator_rate": "0.3",
    "discriminator_batch": "4",
    "feature_scale": "0.5",
    "restarts": "10",
}
BLOBS: dict[str, Any] = {"rounds": 4, "learning_rate": 0.3, "decay": 0.9, "batch_size": 8}


def of_blobs(**changes: Any) -> CoalitionReference:
    return CoalitionReference(GatedBlobs(), range(6), **{**BLOBS, **changes})


@pytest.mark.parametrize(
    ("scheme", "kept"),
    [
        pytest.param("ditto", True, id="ditto-kept"),
        pytest.param("pfedme", False, marks=pytest.mark.slow, id="pfedme-lost"),
        pytest.param("ditto", False, marks=pytest.mark.slow, id="ditto-lost"),
        pytest.param("pfedme", True, marks=pytest.mark.slow, id="pfedme-kept"),
    ],
)
async def test_personal_models_outlive_their_node_where_they_are_kept_and_their_loss_is_survived(
    tmp_path: Path, scheme: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that lost theirs use the shared model, until they train again."""
    managers_here(monkeypatch)
    lost = [] if kept else [(2, client) for client in RESTARTED]
    how = {"training": scheme, "numbers": numbers(scheme)}
    state_dir = tmp_path / "state" if kept else None
    run = await play_with_a_restart(tmp_path, state_dir, scheme=scheme, learning_rate=0.3)
    expected = of_blobs(**how, forgotten=lost).play_together()
    assert_equals(run, expected)
    told = [(event["round"], event["client"]) for event in run.of_kind("model_lost")]
    assert sorted(told) == lost  # by the evaluation of the round in which the node was restarted; and once
    # an oracle that forgets otherwise would not do
    other = of_blobs(**how, forgotten=[(2, client) for client in RESTARTED] if kept else []).play_together()
    assert other[1].accuracy != expected[1].accuracy


# --- late ones

EARLY = (0, 1, 2, 3)
#: Floats of a network for 6 features and 3 labels.
NETWORK = 200 * 6 + 200 + 200 * 3 + 200 + 200 + 1


def summed_bound(groups: Sequence[Sequence[int]], sizes: Mapping[int, int], distances: np.ndarray, c: float) -> float:
    """The first form of the objective, a term a client."""
    total = sum(sizes.values())
    beta = {client: size / total for client, size in sizes.items()}
    bound = 0.0
    for group in groups:
        share = sum(beta[client] for client in group)
        for i in group:
            alpha = {j: beta[j] / share for j in group}
            bound += c / total**0.5 * sum(alpha[j] ** 2 / beta[j] for j in group) ** 0.5
            bound += sum(alpha[j] * max(distances[i, j], 0) for j in group)
    return bound


def placed(
    groups: list[list[int]], new: Iterable[int], sizes: Mapping[int, int], distances: np.ndarray, c: float
) -> list[list[int]]:
    """Each newcomer in turn where the bound is lowest: in a coalition, or alone."""
    for client in new:
        there = {member: sizes[member] for group in groups for member in group} | {client: sizes[client]}
        choices = [[*groups[:at], [*group, client], *groups[at + 1 :]] for at, group in enumerate(groups)]
        groups = min([*choices, [*groups, [client]]], key=lambda choice: summed_bound(choice, there, distances, c))
    return sorted(groups)


@pytest.mark.parametrize(
    ("estimate", "c", "before", "after"),
    [
        ("largest", 0.5, [[0, 2, 3], [1]], [[0, 2, 3, 4], [1], [5]]),
        pytest.param("cross-fitted", 5.0, [[0, 1, 2, 3]], [[0, 1, 2, 3, 4, 5]], marks=pytest.mark.slow),
    ],
)
async def test_only_pairs_of_newcomers_are_told_apart_and_coalitions_stay(
    tmp_path: Path,
    estimate: str,
    c: float,
    before: list[list[int]],
    after: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    managers_here(monkeypatch)
    options = {**OF_BLOBS, "estimate": estimate, "c": str(c)}
    run = await play_with_newcomers(tmp_path, scheme="fedcollab", **by_kind(options))

    first, later = run.of_kind("distances_found")
    assert (first["clients"], later["clients"]) == ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5])
    count = [pairs * ESTIMATES[estimate].folds for pairs in (6, 9)]
    assert {event["networks"] for event in run.of_kind("discriminators")} == set(count)
    moved = [4 * networks * 3 * 4 * NETWORK for networks in count]  # four transfers a network and exchange
    assert [event["bytes"] for event in (first, later)] == pytest.approx(moved, rel=1e-3)  # tensors are padded

    task = GatedBlobs()
    found = json.loads(run.directory.distances.read_text(encoding="utf-8"))
    distances = np.array(found["distances"])
    oracle = Discriminators(task, EARLY, 3, 4, 0.3, 1, 10, scale=0.5, estimate=estimate)
    np.testing.assert_allclose(distances[:4, :4], oracle.pairwise(), atol=1e-12)
    oracle = dataclasses.replace(oracle, clients=range(6), samples=5)
    pairs = [pair for pair in itertools.combinations(range(6), 2) if pair[1] in NEW]
    np.testing.assert_allclose(distances[:, 4:], oracle.pairwise(pairs)[:, 4:], atol=1e-12)

    sizes = {client: len(task.data(client).train) for client in range(6)}
    assert placed(before, NEW, sizes, distances, c) == after
    assert [row["partition"] for row in run.rows] == [before, before, after, after]
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 6, 6]


@pytest.mark.parametrize(
    ("c", "joined"),
    [(0.5, [[0, 2, 3, 4], [5]]), pytest.param(5.0, [[0, 1, 2, 3, 4, 5]], marks=pytest.mark.slow)],
)
async def test_only_coalitions_that_somebody_joined_train_on_if_so_asked(
    tmp_path: Path, c: float, joined: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    options = {**OF_BLOBS, "estimate": "largest", "c": str(c)}
    run = await play_with_newcomers(
        tmp_path, scheme="fedcollab", **by_kind(options), after_arrivals="joined", rounds=5
    )

    def members(groups: Iterable[Iterable[int]]) -> list[int]:
        return sorted(itertools.chain.from_iterable(groups))

    trained = [members(event["teams"]) for event in run.of_kind("round_started")]
    assert trained == [[0, 1, 2, 3]] * 2 + [members(joined)] * 3
    before, after = run.rows[0]["partition"], run.rows[-1]["partition"]
    assert members(after) == list(range(6))
    assert all(group in after for group in joined)
    for group in before:
        for client in map(str, group if group in after else ()):  # they are still evaluated with what they have
            assert len({row["accuracy_per_client"][client] for row in run.rows[1:]}) == 1
