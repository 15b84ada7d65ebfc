"""Clients that come while training goes on are placed, and take part from the next round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.coming_and_going import JOINS, NEW, play_with_newcomers
from tests.support.gated_task import ALPHA, oracle
from tests.support.managers_here import managers_here
from tests.support.reference_groups import assert_equals, assert_final_models


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


@pytest.mark.parametrize("start", ["mean", "initial"])
async def test_newcomers_are_placed_where_they_gain_most(tmp_path: Path, start: str) -> None:
    expected = oracle(joins=JOINS).play_hcct(newcomers=start)
    assert expected[2].partition == [[0], [1, 3], [2, 4], [5]]
    run = await play_with_newcomers(
        tmp_path, grouping_option=ALPHA, profile_option={"newcomer_start": start}, scheme="hcct"
    )
    assert_equals(run, expected)
    assert [(event["round"], event["clients"]) for event in run.of_kind("newcomers")] == [(3, [4, 5])]


async def test_sketches_of_newcomers_can_be_compared_with_those_of_the_others(tmp_path: Path) -> None:
    options = {"grouping_option": ALPHA, "profile_option": {"similarity": "sketch", "sketch_bytes": "16384"}}
    assert_equals(await play_with_newcomers(tmp_path, scheme="hcct", **options), oracle(joins=JOINS).play_hcct())


async def test_newcomers_show_the_layer_that_the_others_show(tmp_path: Path) -> None:
    run = await play_with_newcomers(tmp_path, grouping_option=ALPHA, scheme="hcct-e")
    assert_equals(run, oracle(joins=JOINS).play_hcct("layer"))
    assert not run.of_kind("update_missing")


async def test_late_clients_join_the_smallest_groups_of_a_static_scheme(tmp_path: Path) -> None:
    run = await play_with_newcomers(tmp_path, scheme="naive-gsp", beta=2)
    placed = run.of_kind("client_placed")
    assert [(event["round"], event["client"]) for event in placed] == [(3, 4), (3, 5)]
    assert {event["group"] for event in placed} == {0, 1}
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 6, 6]
    assert [row["groups"] for row in run.rows] == [2, 2, 2, 2]


async def test_late_clients_of_independent_start_from_the_initial_model(tmp_path: Path) -> None:
    run = await play_with_newcomers(tmp_path, scheme="independent")
    reference = oracle()
    models = dict(reference.play_independent()[-1].models)
    for client in NEW:
        models[client] = reference.train(reference.train(reference.initial(), client, 3), client, 4)
    assert_final_models(run, models)


async def test_a_node_that_comes_late_takes_part_from_the_next_round(tmp_path: Path) -> None:
    run = await play_with_newcomers(tmp_path, scheme="fedgsp", beta=1, sampling_rate=1.0)
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 6, 6]


@pytest.mark.parametrize(
    "scheme",
    [
        "maxfl-hcct",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("flsc", "hcct-p", "maxfl", "ifca", "fesem")),
    ],
)
async def test_every_scheme_takes_in_late_clients(tmp_path: Path, scheme: str) -> None:
    run = await play_with_newcomers(tmp_path, scheme=scheme)
    assert [row["clients_trained"] for row in run.rows] == [4, 4, 6, 6]
    assert sorted(client for group in run.rows[3]["partition"] for client in group) == [0, 1, 2, 3, 4, 5]
    assert run.rows[3]["accuracy_per_client"].keys() == {"0", "1", "2", "3", "4", "5"}
    assert not run.of_kind("client_skipped")


async def test_options_for_clients_that_are_not_there_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**ALPHA, "alpha.1": "5", "alpha.4": "5", "alpha.99": "5"}
    await play_with_newcomers(tmp_path, grouping_option=options, scheme="hcct")
    told = [record.getMessage() for record in caplog.records if "--grouping-option" in record.getMessage()]
    assert told == ["--grouping-option is for clients that are not there: 4, 99"]
