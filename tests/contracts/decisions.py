"""Groupings, weighings and merges: what the top server decides with."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
from numpy.typing import NDArray

from fedgsp.schedules import SCHEDULES, plan
from fedgsp.transfers.model_store import ModelStore
from tests.contracts.declarations import check_declaration
from tests.support.weights import some_weights
from top_server.evidence import Evidence
from top_server.grouping import GROUPINGS, GroupingRequest, Plan
from top_server.grouping.round_size import GROWTHS
from top_server.merging import MERGES, MergeSettings, Merging
from top_server.merging.base import GroupModel, MemberModel
from top_server.merging.weighing import WEIGHINGS
from top_server.models import INITIAL, Held, Holdings, Models, cluster_slot

CLIENTS = (0, 1, 2, 3)
SAMPLES = {0: 4, 1: 9, 2: 2, 3: 7}


def request_for(clients: int, groups: int, seed: int = 0, **options: str) -> GroupingRequest:
    """A question with every kind of evidence that a profile of FedGSP gives, and `size` as another column."""
    rng = np.random.default_rng([seed, clients])
    histograms = rng.multinomial(40, rng.dirichlet(np.full(5, 0.3), clients))
    updates = rng.normal(size=(clients, 3))
    return GroupingRequest(
        round=3,
        groups=groups,
        seed=seed,
        clients=tuple(range(100, 100 + clients)),
        sizes=histograms.sum(axis=1),
        histograms=histograms,
        matrices={
            "gram": updates @ updates.T,
            "costs": rng.random((clients, 3)),
            "distances": rng.random((clients, clients)),
            "train_loss": rng.random((clients, 1)),
            "prior_distance": rng.random((clients, 1)),
            "size": rng.random((clients, 1)),
        },
        options=options,
    )


async def check_schedule(name: str) -> None:
    """Factors above 0 and at most 1, the same each time, at every position before the horizon."""
    check_declaration(SCHEDULES, name)
    for horizon in (1, 2, 10, 1000):
        found = [plan(name, {}).factor(position, horizon) for position in range(horizon)]
        assert all(0 < factor <= 1 for factor in found)
        assert found == [plan(name, {}).factor(position, horizon) for position in range(horizon)]


async def check_growth(name: str) -> None:
    """A number of at least 1 in every round, the same each time."""
    code = check_declaration(GROWTHS, name).load()
    for alpha in (0.1, 2.0):
        found = [code(number, alpha) for number in (1, 2, 10, 1000)]
        assert all(number >= 1 for number in found), "it gives less than 1"
        assert found == [code(number, alpha) for number in (1, 2, 10, 1000)], "it answers otherwise each time"


async def check_grouping(name: str) -> None:
    """Every client is in one group or idle; the same request has the same plan; nothing of it is changed."""
    check_declaration(GROUPINGS, name)
    for clients, groups in [(1, 1), (7, 1), (7, 7), (7, 20), (20, 3), (20, 6), (20, 11)]:
        for seed in range(5):
            request = request_for(clients, groups, seed)
            GROUPINGS[name](request).check(request)
            _assert_unchanged(request, request_for(clients, groups, seed))
    assert GROUPINGS[name](request_for(20, 4)) == GROUPINGS[name](request_for(20, 4)), "it answers otherwise each time"
    if GROUPINGS[name].balances:
        _check_balance(name)


def _check_balance(name: str) -> None:
    """With the times of clients, groups have the sizes that they have without, and the longest takes no more time."""
    for clients, groups in [(1, 1), (7, 7), (20, 3), (20, 6)]:
        for seed in range(5):
            request = request_for(clients, groups, seed)
            seconds = np.random.default_rng(seed).lognormal(size=clients)
            without, timed = GROUPINGS[name](request), GROUPINGS[name](dataclasses.replace(request, seconds=seconds))
            timed.check(request)
            assert sorted(map(len, timed.groups)) == sorted(map(len, without.groups)), "it makes groups of other sizes"
            assert _longest(timed, request, seconds) <= _longest(without, request, seconds) * (1 + 1e-6)


def _longest(plan: Plan, request: GroupingRequest, seconds: NDArray[np.float64]) -> float:
    time_of = dict(zip(request.clients, seconds.tolist(), strict=True))
    return max(sum(time_of[client] for client in group) for group in plan.groups)


def _assert_unchanged(request: GroupingRequest, before: GroupingRequest) -> None:
    assert request.histograms is not None
    assert before.histograms is not None
    assert np.array_equal(request.histograms, before.histograms), "it changed the histograms"
    for name, matrix in before.matrices.items():
        assert np.array_equal(request.matrices[name], matrix), f"it changed matrix {name}"


async def check_weighing(name: str) -> None:
    """Finite weights of at least 0, the same each time, also where nothing is known of a member."""
    check_declaration(WEIGHINGS, name)
    sizes = np.array([30, 0, 60, 1])
    for known in (np.array([0.5, 0.2, 0.9, 1.0]), np.array([0.5, np.nan, 0.9, 1.0])):
        evidence = {column: known.copy() for column in ("train_accuracy", "train_loss", "prior_loss", "size")}
        weights = WEIGHINGS[name](sizes, evidence, {})
        assert weights.shape == sizes.shape
        assert np.isfinite(weights).all()
        assert (weights >= 0).all()
        assert np.array_equal(weights, WEIGHINGS[name](sizes, evidence, {})), "it weighs otherwise each time"
        assert all(np.array_equal(column, known, equal_nan=True) for column in evidence.values()), (
            "it changed evidence"
        )


async def check_merge(name: str) -> None:
    """The same calls give the same bits, also when the state was saved and restored in between."""
    check_declaration(MERGES, name)
    undisturbed, resumed = _play(name, resume=False), _play(name, resume=True)
    assert undisturbed.keys() == resumed.keys()
    for slot, digest in undisturbed.items():
        assert resumed[slot] == digest, f"the model of {slot} differs after a resume"


def _play(name: str, resume: bool) -> dict[str, bytes]:
    """The digests of all models after three rounds of two groups, or of clients that train alone."""
    models, merging = Models(ModelStore()), _merging(name)
    models.put([INITIAL], "run/initial", some_weights(0))
    models.apply(merging.prepare(models.slots))
    for cluster in range(3):
        models.put([cluster_slot(cluster)], f"run/cluster {cluster}", some_weights(10 + cluster))
    for number in (1, 2, 3):
        if resume:
            saved, tensors = merging.state()
            merging = _merging(name)
            merging.restore(json.loads(json.dumps(saved)), {key: np.array(tensor) for key, tensor in tensors.items()})
        costs = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
        evidence = Evidence(CLIENTS, figures={"costs": costs})
        wanted = {slot: models.weights(models.slots[slot]) for slot in merging.reads(evidence)}
        models.apply(merging.begin(number, evidence, wanted))
        groups = _groups(merging)
        for index, group in enumerate(groups):
            starts = merging.start(group, Holdings(models.slots, SAMPLES, {}))
            assert starts, "a group has no start"
            assert all(held.ref.id for held, _ in starts)
            assert all(weight > 0 for _, weight in starts)
            models.apply(merging.fold(number, _trained(merging, number, index, group)))
        models.apply(merging.finish(number))
        for client in CLIENTS:
            assert isinstance(merging.of(client, models.slots), Held)
            assert merging.untrained(client, models.slots) == "", f"client {client} has an untrained model"
    return {slot: held.ref.digest for slot, held in sorted(models.slots.items())}


def _merging(name: str) -> Merging:
    merging: Merging = MERGES[name].load()(MergeSettings("run", 0, False, MERGES[name].read({})))
    return merging


def _groups(merging: Merging) -> list[tuple[int, ...]]:
    collects = merging.alone is not None and merging.alone.name == "COLLECTED"
    return [(client,) for client in CLIENTS] if collects else [(0, 1), (2, 3)]


def _trained(merging: Merging, number: int, index: int, group: tuple[int, ...]) -> GroupModel:
    weights = some_weights(100 * number + index)
    own = {client: _member(number, client) for client in group}
    alone = merging.alone is not None and len(group) == 1
    samples = sum(SAMPLES[client] for client in group)
    return GroupModel(index, group, frozenset(group), samples, None if alone else weights, own)


def _member(number: int, client: int) -> MemberModel:
    weights = some_weights(1000 * number + client)
    return MemberModel(Held(weights.ref(f"run/{number}/of {client}"), client), SAMPLES[client], weights)
