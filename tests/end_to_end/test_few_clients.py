"""A run whose settings nobody gave: chosen when the clients are known, recorded, and repeated from the record."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from fedgsp_node.tasks import load_task
from tests.support.cluster import Finished, nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, assert_same_bits

CLIENTS = 6
OPEN = {"alpha": None, "beta": None, "sampling_rate": None, "smallest_group": None}


def told(run: Finished, kind: str) -> list[dict[str, object]]:
    return [event for event in run.events if event["event"] == kind]


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_six_clients_all_train_in_groups_of_several_and_the_record_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    task = {"clients": str(CLIENTS)}
    config = settings(tmp_path / "run", rounds=3, task_option=task, min_clients=CLIENTS, **OPEN)
    hosts = nodes(range(CLIENTS), clients=str(CLIENTS))
    run = await play(config, hosts)
    assert [(row["groups"], row["clients_trained"]) for row in run.rows] == [(1, 6), (1, 6), (2, 6)]
    oracle = Reference(
        load_task("digits", task),
        range(CLIENTS),
        rounds=3,
        alpha=1.0,
        beta=1,
        sampling_rate=1.0,
        options={"mode": "all"},
    )
    assert_same_bits(run.model(3), oracle.play_fedgsp()[2])
    (chosen,), (expected,) = told(run, "settings_chosen"), told(run, "groups_expected")
    assert chosen["clients"] == expected["clients"] == CLIENTS
    assert expected["outlook"] == ("1 in rounds 1 and 2, 2 in round 3; all of them train, with 3 to 6 clients in each")
    assert not told(run, "groups_doubted")

    recorded = load(RunConfig, run.directory.config)
    assert all(getattr(recorded, name) is not None for name in OPEN)
    again = await play(dataclasses.replace(recorded, run_dir=tmp_path / "again"), hosts)
    assert_same_bits(again.model(3), run.model(3))
    assert not told(again, "settings_chosen")
    assert load(RunConfig, again.directory.config) == recorded


@pytest.mark.e2e
async def test_groups_of_one_that_a_person_asked_for_are_played_and_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    config = settings(tmp_path / "run", scheme="fedgsp", rounds=1, beta=8, min_clients=8)
    run = await play(config, nodes(range(8)))
    assert run.rows[0]["groups"] == 8
    (doubt,) = told(run, "groups_doubted")
    assert "in round 1 every group is a single client" in str(doubt["reason"])
