"""Whatever may be chosen together works together: every pair of choices in some run, and what does not fit is told."""

from __future__ import annotations

import functools
import heapq
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.run import RunConfig
from fedgsp.trainings import TRAININGS
from tests.support.cluster import Finished, play
from tests.support.gated_task import ALPHA, GatedBlobs, gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.reference import assert_same_bits
from tests.support.reference_coalitions import CoalitionReference
from tests.support.reference_groups import Played, assert_final_models
from tests.support.short_profiles import short_profile
from tests.support.trainings import numbers
from top_server.choosing import NAMES, choose
from top_server.grouping import GROUPINGS
from top_server.merging import MERGES
from top_server.record.model_files import load
from top_server.schemes import SCHEMES

FIVE = range(5)
#: Options that make short work of what groupings do, or let it come to something.
OF_GROUPINGS = {
    "fedcluster": {"eps1": "100", "eps2": "0.01", "min_round": "0"},
    "fixed": {"groups": "0,1/2,3"},
    "hcct": ALPHA,
    "kmeans": {"clusters": "2"},
}
#: Each grouping meets every merge, training, aggregation and program that it can: these always, the others on demand.
OFTEN = ("icg",)
#: Merges after which all clients have the same model; else results are told for each.
ONE_MODEL = (
    "mean",
    "weighted-mean",
    "median",
    "trimmed-mean",
    "smoothed-mean",
    "ida",
    "fedadagrad",
    "fedadam",
    "fedyogi",
)


class Combination(NamedTuple):
    grouping: str
    merge: str
    training: str
    aggregation: str
    program: str


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


def verdict(**chosen: Any) -> ConfigError | None:
    """Why this cannot be chosen, or None."""
    try:
        choose(RunConfig(batch_size=8, **chosen))
    except ConfigError as error:
        return error
    return None


@functools.cache
def verdicts() -> dict[tuple[str, str, str], ConfigError | None]:
    """Of every scheme with every grouping and merge in place of its own."""
    table = itertools.product(SCHEMES, GROUPINGS, MERGES)
    return {(s, grouping, merge): verdict(scheme=s, grouping=grouping, merge=merge) for s, grouping, merge in table}


def pairs(combination: Combination) -> set[tuple[tuple[str, str], ...]]:
    """Its choices, two by two."""
    return set(itertools.combinations(zip(Combination._fields, combination, strict=True), 2))


def possible() -> list[Combination]:
    """Those that some scheme allows."""
    schemes = {(grouping, merge): s for (s, grouping, merge), error in verdicts().items() if error is None}
    within = itertools.product(TRAININGS, NAMES["aggregation"], NAMES["program"])
    all_of_them = [Combination(*groups, *inside) for groups, inside in itertools.product(schemes, within)]
    return [one for one in all_of_them if refusal(schemes[one.grouping, one.merge], one) is None]


def refusal(scheme: str, combination: Combination) -> ConfigError | None:
    # every training goes with everything, but that which adds tensors to the model
    likely = combination.training if TRAININGS[combination.training].adds else "sgd"
    return _refusal(scheme, combination._replace(training=likely))


@functools.cache
def _refusal(scheme: str, combination: Combination) -> ConfigError | None:
    return verdict(scheme=scheme, **combination._asdict())


@functools.cache
def cover() -> list[tuple[str, Combination]]:
    """Few combinations, each with a scheme, in which every possible pair of choices and every scheme is found."""
    candidates = possible()
    of = [pairs(combination) for combination in candidates]
    missing = set().union(*of)
    used = dict.fromkeys(SCHEMES, 0)
    found = []
    # How many missing pairs each had when it was last looked at, which is never less than it has now.
    most = [(-len(each), number) for number, each in enumerate(of)]
    heapq.heapify(most)
    while missing:
        while (now := -len(of[most[0][1]] & missing)) != most[0][0]:
            heapq.heapreplace(most, (now, most[0][1]))
        number = most[0][1]
        best = candidates[number]
        missing -= of[number]
        rarest = sorted(SCHEMES, key=used.__getitem__)
        fitting = (scheme for scheme in rarest if verdicts()[scheme, best.grouping, best.merge] is None)
        scheme = next(scheme for scheme in fitting if refusal(scheme, best) is None)
        used[scheme] += 1
        found.append((scheme, best))
    assert all(used.values())
    return found


def configured(tmp_path: Path, scheme: str, grouping: str | None = None, **changes: Any) -> RunConfig:
    of_grouping = OF_GROUPINGS.get(grouping or SCHEMES[scheme].grouping, {})
    given = {"grouping_option": of_grouping, "profile_option": short_profile(scheme)}
    common = {"scheme": scheme, "grouping": grouping, **given, "rounds": 2, "min_nodes": 2}
    return gated_settings(tmp_path, **{**common, **changes})


async def played(config: RunConfig) -> Finished:
    return await play(config, [host("n0", 0, 3, 4), host("n1", 1, 2)])


def check(run: Finished, config: RunConfig, grouping: str, merge: str) -> None:
    """It ended, trained everybody or, in groups of equal size, all but who is too many, and served these."""
    assert run.directory.summary.exists() or merge in ONE_MODEL
    assert [row["round"] for row in run.rows] == [1, 2]
    leaves_out = grouping in ("icg", "random") and choose(config).given("grouping").get("mode") != "all"
    for row in run.rows:
        equal = row["groups"] * (5 // row["groups"])
        assert row["clients_trained"] == (equal if leaves_out else 5)
        assert 0 <= row["accuracy"] <= 1
        assert np.isfinite(row["loss"])
        assert "partition" in row or merge in ONE_MODEL
        if "partition" in row:
            named = [client for group in row["partition"] for client in group]
            assert len(set(named)) == len(named) == row["clients_trained"]
            # Who is too many in every round has no model but one for all.
            served = set(map(str, FIVE if merge in ONE_MODEL else named))
            assert served <= row["accuracy_per_client"].keys() <= set(map(str, FIVE))
    for kind in ("client_skipped", "group_failed", "update_missing", "model_lost", "not_evaluated", "manager_lost"):
        assert not run.of_kind(kind)
    final = list(run.directory.models.glob("final*.safetensors"))
    assert final
    assert all(np.isfinite(array).all() for path in final for array in load(path)[0].values())


@pytest.mark.parametrize(
    "grouping", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in GROUPINGS]
)
async def test_every_pair_of_choices_is_played(tmp_path: Path, grouping: str) -> None:
    ours = [(scheme, combination) for scheme, combination in cover() if combination.grouping == grouping]
    assert {combination.training for _, combination in ours} == set(TRAININGS)
    for number, (scheme, combination) in enumerate(ours):
        config = configured(tmp_path / str(number), scheme, **combination._asdict())
        try:
            check(await played(config), config, grouping, combination.merge)
        except Exception as error:
            error.add_note(f"scheme {scheme} with {combination}")
            raise


def test_what_does_not_fit_is_refused_with_schemes_that_it_fits() -> None:
    refused = [error for error in verdicts().values() if error is not None]
    mixed = verdict(scheme="fedgsp", aggregation="fednova")
    assert mixed is not None
    told = {(error.what.split(" needs ")[0], error.remedy) for error in [*refused, mixed]}
    assert len(told) > 10
    for what, remedy in told:
        column, value = what.split(" ")
        if remedy in ("leave out --grouping", "leave out --merge"):
            continue  # every row goes by itself
        assert remedy.startswith("use scheme ")
        for scheme in remedy.removeprefix("use scheme ").split(" or "):
            assert verdict(scheme=scheme, **{column: value}) is None, what


# Three of them in full, with other groups than their training's own: bit for bit


def oracle(training: str, **changes: Any) -> CoalitionReference:
    common: dict[str, Any] = {
        "rounds": 3,
        "learning_rate": 0.05,
        "decay": 0.9,
        "batch_size": 8,
        "numbers": numbers(training),
    }
    return CoalitionReference(GatedBlobs(), FIVE, **{**common, "training": training, **changes})


async def test_coalitions_may_relay_their_models(tmp_path: Path) -> None:
    config = configured(tmp_path, "fedcollab", program="relay", rounds=3)
    run = await played(config)
    reference = oracle("sgd")
    (partition,) = {str(row["partition"]): row["partition"] for row in run.rows}.values()
    assert max(map(len, partition)) > 1
    models = dict.fromkeys(FIVE, reference.initial())
    for number in range(1, 4):
        for group in partition:
            state = models[group[0]]
            for client in group:
                state = reference.train(state, client, number)
            models.update(dict.fromkeys(group, state))
    assert_final_models(run, models)


async def test_unlike_groups_may_train_by_fedprox(tmp_path: Path) -> None:
    run = await played(configured(tmp_path, "fedgsp", training="fedprox", rounds=3, keep_models="all"))
    expected = oracle("fedprox", alpha=2.0, beta=2, sampling_rate=1.0).play_fedgsp()
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 5]
    for number, model in enumerate(expected, 1):
        assert_same_bits(run.model(number), model)


async def test_groups_of_hcct_may_train_by_ditto(tmp_path: Path) -> None:
    run = await played(configured(tmp_path, "hcct", training="ditto", rounds=3))
    expected: list[Played] = oracle("ditto", options=ALPHA).play_hcct()
    assert [row["partition"] for row in run.rows] == [one.partition for one in expected]
    assert any(len(group) > 1 for group in expected[2].partition)
    assert_final_models(run, expected[-1].models)
