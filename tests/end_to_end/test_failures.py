"""What goes wrong in a run is left out, said, and changes nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import PeerError
from fedgsp.messages import Described, Evaluate, Evaluated, Order
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node import server as node_server
from fedgsp_node.tasks import load_task
from fedgsp_node.worker import Worker
from tests.support import cluster
from tests.support.cluster import play
from tests.support.managers_here import managers_here
from tests.support.ports import free_ports, range_of
from tests.support.reference import Reference, assert_same_bits
from top_server.record.journal import Line
from top_server.record.model_files import load

EIGHT = range(8)
FAULTY = "tests.support.faulty_task:FaultyDigits"
#: The first eight of many small clients.
TASK = {"clients": "24"}


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    return cluster.settings(tmp_path / "run", **{"task_option": TASK, **changes})


def nodes(*clients: Sequence[int]) -> list[NodeSettings]:
    return cluster.nodes(*clients, clients=TASK["clients"])


def faulty(tmp_path: Path, **options: str) -> tuple[dict[str, Any], list[NodeSettings]]:
    task = {**TASK, **options}
    hosts = [dataclasses.replace(node, task=FAULTY, task_option=task) for node in nodes(range(4), range(4, 8))]
    return {"task": FAULTY, "task_option": task, "tmp_path": tmp_path}, hosts


@pytest.fixture
def _managers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


HERE = pytest.mark.usefixtures("_managers_here")


@HERE
async def test_a_peer_that_cannot_be_dialled_is_served_by_the_manager(tmp_path: Path) -> None:
    hosts = [dataclasses.replace(node, advertise="127.0.0.1:9") for node in nodes([0, 2, 4, 6], [1, 3, 5, 7])]
    run = await play(settings(tmp_path, beta=1), hosts)
    expected = Reference(load_task("digits", TASK), EIGHT, rounds=2, beta=1, sampling_rate=1.0).play_fedgsp()
    assert_same_bits(run.model(2), expected[1])
    assert "127.0.0.1:9" in run.of_kind("rerouted")[0]["reason"]
    assert all(row["bytes_direct"] == 0 for row in run.rows)


@pytest.mark.parametrize(
    ("scheme", "fault", "reason"),
    [
        ("fedgsp", "raises", "the scanner is offline (faulty_task.py:"),
        pytest.param("fedavg", "diverges", "lower --learning-rate", marks=pytest.mark.slow),
        pytest.param("fedavg", "raises", "the scanner is offline (faulty_task.py:", marks=pytest.mark.slow),
        pytest.param("fedgsp", "diverges", "lower --learning-rate", marks=pytest.mark.slow),
    ],
)
@HERE
async def test_a_client_whose_training_fails_is_skipped(tmp_path: Path, scheme: str, fault: str, reason: str) -> None:
    changes, hosts = faulty(tmp_path, **{fault: "5"})
    run = await play(settings(scheme=scheme, **changes), hosts)
    oracle = Reference(
        load_task(FAULTY, TASK),
        EIGHT,
        rounds=2,
        beta=2,
        sampling_rate=1.0,
        takes_part=lambda _r, _g, client: client != 5,
    )
    expected = oracle.play_fedgsp() if scheme == "fedgsp" else oracle.play_fedavg()
    assert_same_bits(run.model(2), expected[1])
    skipped = run.of_kind("client_skipped")
    assert {event["client"] for event in skipped} == {5}
    assert all(reason in event["reason"] for event in skipped)
    assert {event["node"] for event in skipped} == {"n1"}
    assert [row["clients_trained"] for row in run.rows] == [7, 7]


@pytest.mark.parametrize(
    "scheme", ["hcct", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ifca", "flsc"))]
)
@HERE
async def test_a_client_that_never_trained_has_no_model_and_counts_in_no_accuracy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    """In IFCA and FLSC it uses what others trained, if it chose a cluster that somebody did."""
    changes, hosts = faulty(tmp_path, raises="5")
    run = await play(settings(scheme=scheme, **changes), hosts)
    trained = set(range(8)) - ({5} if scheme != "ifca" else set())
    assert [set(row["accuracy_per_client"]) for row in run.rows] == [set(map(str, sorted(trained)))] * 2
    assert [row["clients_evaluated"] for row in run.rows] == [len(trained)] * 2
    assert all(row["accuracy"] is not None for row in run.rows)
    saved = {client for path in run.directory.models.glob("final*") for client in load(path)[1].clients}
    assert saved == trained
    without = [event["client"] for event in run.of_kind("model_not_saved")]
    assert without == sorted(set(range(8)) - trained)
    warned = [record.getMessage() for record in caplog.records if "no trained model" in record.getMessage()]
    assert warned == ["no trained model is saved for clients: 5"] * bool(without)


@HERE
async def test_a_run_in_which_nobody_can_train_ends_with_the_reason(tmp_path: Path) -> None:
    changes, hosts = faulty(tmp_path, raises="0")
    hosts = [dataclasses.replace(hosts[0], clients="0")]
    with pytest.raises(ExceptionGroup) as caught:
        await play(settings(**changes), hosts)
    messages = " ".join(str(error) for error in caught.value.exceptions)
    assert "round 1 trained nobody" in messages
    assert "the scanner is offline" in messages


@HERE
async def test_a_run_goes_on_after_a_round_whose_only_client_failed(tmp_path: Path) -> None:
    """A refused client that is drawn alone must not end the run of the others."""
    lone: dict[str, Any] = {"scheme": "fedavg", "sampling_rate": 1 / 8, "rounds": 4}
    changes, hosts = faulty(tmp_path / "good")
    drawn = [event["teams"] for event in (await play(settings(**changes, **lone), hosts)).of_kind("round_started")]
    bad = drawn[1][0][0]
    changes, hosts = faulty(tmp_path / "bad", raises=str(bad))
    run = await play(settings(**changes, **lone), hosts)
    assert [event["teams"] for event in run.of_kind("round_started")] == drawn
    told = run.of_kind("trained_nobody")
    assert [event["round"] for event in told] == [number for number, teams in enumerate(drawn, 1) if teams == [[bad]]]
    assert "the scanner is offline" in told[0]["reason"]
    assert_same_bits(run.model(2), run.model(1))
    assert [row["clients_trained"] for row in run.rows] == [int(teams != [[bad]]) for teams in drawn]
    assert all(row["accuracy"] is not None for row in run.rows)


@HERE
async def test_a_run_ends_after_three_rounds_in_a_row_whose_clients_all_failed(tmp_path: Path) -> None:
    changes, hosts = faulty(tmp_path, raises="+".join(map(str, EIGHT)))
    with pytest.raises(ExceptionGroup) as caught:
        await play(settings(scheme="fedavg", **{**changes, "rounds": 9, "sampling_rate": 0.5}), hosts)
    messages = " ".join(str(error) for error in caught.value.exceptions)
    assert "round 3 trained nobody" in messages
    assert "nor did the 2 rounds before it" in messages


async def test_a_run_waits_for_its_nodes_and_says_who_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await play(settings(tmp_path, min_nodes=2, join_timeout=2.0), nodes(EIGHT))
    messages = " ".join(str(error) for error in caught.value.exceptions)
    assert "only 1 of 2 nodes with 8 clients joined within" in messages


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": "3-7"}, "client 3 is already hosted by another node"),
        ({"task": FAULTY}, "start it with the --task of the run"),
    ],
)
@HERE
async def test_a_node_that_does_not_fit_is_refused_with_the_remedy_and_the_run_goes_on(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    first, second = nodes(range(4), range(4, 8))
    there = asyncio.Event()
    refused: list[PeerError] = []

    async def refused_first(settings: NodeSettings) -> None:
        await there.wait()
        with pytest.raises(PeerError) as caught:
            await node_server.run(dataclasses.replace(settings, name="unfit", **changes))
        refused.append(caught.value)
        await node_server.run(settings)

    def watch(event: Line) -> None:
        if event["event"] == "node_joined":
            there.set()

    run = await play(settings(tmp_path, rounds=1, min_clients=8), [first], [(second, refused_first)], watch)
    assert [said in str(error) for error in refused] == [True]
    assert [event["node"] for event in run.of_kind("node_refused")] == ["unfit"]
    assert [row["clients_trained"] for row in run.rows] == [8]


@HERE
async def test_an_accuracy_of_only_some_clients_is_not_reported(tmp_path: Path) -> None:
    changes, hosts = faulty(tmp_path, untestable="6")
    run = await play(settings(**changes), hosts)
    assert [(row["accuracy"], row["loss"]) for row in run.rows] == [(None, None)] * 2
    assert [row["clients_trained"] for row in run.rows] == [8, 8]
    reasons = [event["reason"] for event in run.of_kind("not_evaluated")]
    assert len(reasons) == 2
    assert "1 of 8 clients gave no answer" in reasons[0]
    assert "the labels are sealed" in reasons[0]


async def test_groups_share_the_managers_that_ports_are_enough_for(tmp_path: Path) -> None:
    with free_ports(1) as held:
        port = range_of(held)[0]
    run = await play(settings(tmp_path, manager_ports=f"{port}-{port}"), nodes(range(4), range(4, 8)))
    expected = Reference(load_task("digits", TASK), EIGHT, rounds=2, beta=2, sampling_rate=1.0).play_fedgsp()
    assert_same_bits(run.model(2), expected[1])
    assert len(run.of_kind("manager_spawned")) == 1


@HERE
async def test_a_node_that_answers_something_else_is_as_good_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Worker._evaluate

    async def confuses(self: Worker, order: Order, work: Evaluate) -> Evaluated | Described:
        return Described((1, 2)) if order.client == 6 else await evaluate(self, order, work)

    monkeypatch.setattr(Worker, "_evaluate", confuses)
    run = await play(settings(tmp_path), nodes(range(4), range(4, 8)))
    assert [(row["accuracy"], row["clients_trained"]) for row in run.rows] == [(None, 8)] * 2
    assert {event["client"] for event in run.of_kind("client_skipped")} == {6}
    assert "it answered Described in place of Evaluated" in run.of_kind("not_evaluated")[0]["reason"]
