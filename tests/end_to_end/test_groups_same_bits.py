"""Schemes with a model per client, group or cluster equal an independent implementation, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node.tasks import load_task
from tests.support.cluster import Finished, nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.option_kinds import by_kind
from tests.support.processes import top_server
from tests.support.reference_groups import GroupReference, Played, assert_equals
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

SEVEN = range(7)
LAYOUTS: dict[str, list[Sequence[int]]] = {"one node": [SEVEN], "mixed up": [[6, 0, 3], [1, 2], [4, 5]]}
#: The first seven of small clients, with sizes and label mixes so unlike that some stay alone and others do not.
TASK: dict[str, Any] = {"clients": "20", "alpha": "0.2"}
ALPHA = {"alpha": "25"}

Oracle = Callable[[GroupReference], list[Played]]

#: Scheme and its options -> what must come out.
SCHEMES: dict[str, tuple[str, dict[str, str], Oracle]] = {
    "independent": ("independent", {}, lambda oracle: oracle.play_independent()),
    "global": ("global", {}, lambda oracle: oracle.play_global()),
    "hcct": ("hcct", ALPHA, lambda oracle: oracle.play_hcct()),
    "hcct-e": ("hcct-e", ALPHA, lambda oracle: oracle.play_hcct("layer")),
    # longer than the model; so many signs tell these clients apart as the whole updates do
    "hcct, sketch": (
        "hcct",
        {**ALPHA, "similarity": "sketch", "sketch_bytes": "16384"},
        lambda oracle: oracle.play_hcct(),
    ),
    "hcct, first epoch together": ("hcct", {**ALPHA, "first_epoch": "all"}, lambda oracle: oracle.play_hcct()),
    "hcct-p": ("hcct-p", ALPHA, lambda oracle: oracle.play_hcct(personal=True)),
    "hcct-p, heads shown": (
        "hcct-p",
        {**ALPHA, "similarity_of": "all"},
        lambda oracle: oracle.play_hcct(personal=True, similarity_of="all"),
    ),
    "fedfa": ("fedfa", {}, lambda oracle: oracle.play_fedfa()),
    "maxfl": ("maxfl", {"prior_epochs": "4"}, lambda oracle: oracle.play_maxfl(4)),
    "maxfl-hcct": ("maxfl-hcct", {"prior_epochs": "20"}, lambda oracle: oracle.play_maxfl_hcct(20)),
    "ifca": ("ifca", {"models": "3"}, lambda oracle: oracle.play_ifca(3)),
    "flsc": ("flsc", {"models": "4", "soft": "2"}, lambda oracle: oracle.play_flsc(4, 2)),
}


#: Played with managers that are processes of their own, in one layout.
BY_PROCESSES = ("hcct", "maxfl", "ifca")


@functools.cache
def expected(name: str) -> list[Played]:
    _, options, oracle = SCHEMES[name]
    grouping = {key: value for key, value in options.items() if key in ("alpha", "first_epoch")}
    return oracle(
        GroupReference(
            load_task("digits", TASK),
            SEVEN,
            rounds=3,
            learning_rate=0.05,
            decay=0.9,
            batch_size=40,
            options=grouping,
        )
    )


def configured(tmp_path: Path, name: str, **changes: Any) -> RunConfig:
    scheme, options, _ = SCHEMES[name]
    quick = {
        "scheme": scheme,
        **by_kind(options),
        "rounds": 3,
        "learning_rate": 0.05,
        "learning_rate_decay": 0.9,
        "batch_size": 40,
        "task_option": TASK,
        "keep_models": "last",
        "min_clients": 7,
    }
    return settings(tmp_path / "run", **{**quick, **changes})


def hosts(layout: str, **changes: Any) -> list[NodeSettings]:
    return [dataclasses.replace(node, **changes) for node in nodes(*LAYOUTS[layout], **TASK)]


#: Another case has all that is in these. They are played on demand, as all are in the other layouts.
SELDOM = ("maxfl", "hcct, first epoch together", "hcct, sketch", "global")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(
            name,
            layout,
            marks=[] if layout == "mixed up" and name not in SELDOM else [pytest.mark.slow],
        )
        for name, layout in itertools.product(SCHEMES, LAYOUTS)
        if not name.startswith("hcct-p")
    ],
)
async def test_every_scheme_gives_the_oracles_bits_in_every_layout(
    tmp_path: Path, name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in BY_PROCESSES or layout == "one node":
        managers_here(monkeypatch)
    run = await play(configured(tmp_path, name), hosts(layout))
    assert_equals(run, expected(name))
    assert not run.of_kind("client_skipped")


@pytest.mark.parametrize("name", [pytest.param("hcct-p", marks=pytest.mark.slow), "hcct-p, heads shown"])
async def test_personal_heads_of_one_node_give_the_oracles_bits(tmp_path: Path, name: str) -> None:
    assert_equals(await play(configured(tmp_path, name), hosts("one node")), expected(name))


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_personal_heads_of_several_nodes_give_the_oracles_bits(tmp_path: Path) -> None:
    """Nodes make fresh heads while others train; in threads of one process they would share torch's random numbers."""
    flags = ["--scheme", "hcct-p", "--rounds", "3", "--batch-size", "40", "--learning-rate", "0.05"]
    flags += ["--learning-rate-decay", "0.9", "--grouping-option", "alpha=25", "--task-option", "clients=20"]
    flags += ["--task-option", "alpha=0.2", "--local-nodes", "3", "--clients", "7"]
    async with top_server(tmp_path, *flags) as process:
        assert await process.ended(120.0) == 0, process.errors
    directory = RunDirectory(tmp_path / "run")
    assert_equals(Finished(directory, read_lines(directory.history)), expected("hcct-p"))


@pytest.mark.parametrize(
    "changes",
    [pytest.param({"relay": "manager"}, marks=pytest.mark.slow), {"peer_listen": None}],
    ids=["by way of the manager", "no peers"],
)
async def test_weights_may_take_any_way(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    relay = {name: value for name, value in changes.items() if name == "relay"}
    without = {name: value for name, value in changes.items() if name != "relay"}
    run = await play(configured(tmp_path, "hcct", **relay), hosts("mixed up", **without))
    assert_equals(run, expected("hcct"))
    assert all(row["bytes_direct"] == 0 for row in run.rows)


@pytest.mark.parametrize("name", ["hcct", "hcct-e", "hcct-p", "maxfl-hcct", "ifca"])
def test_the_partitions_compared_are_not_trivial(name: str) -> None:
    """Groups and clients alone, and not the same ones all the time."""
    first, second, third = (played.partition for played in expected(name))
    assert {len(group) == 1 for group in second} == {True, False}
    assert first != second
    assert second != third or name == "ifca"


async def test_the_members_of_a_group_may_relay_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    run = await play(configured(tmp_path, "hcct", program="relay"), hosts("mixed up"))
    assert all(row["clients_trained"] == 7 for row in run.rows)
    assert any(len(group) > 1 for group in run.rows[1]["partition"])
    assert len(list(run.directory.models.glob("final-group-*.safetensors"))) == len(run.rows[2]["partition"])
    assert run.rows[2]["accuracy"] > 0.5


async def test_groups_of_fedgsp_may_keep_models_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    changes = {"scheme": "fedgsp", "merge": "none", "grouping_option": {}, "beta": 2}
    run = await play(configured(tmp_path, "hcct", **changes), hosts("mixed up"))
    assert [row["groups"] for row in run.rows] == [2, 4, 6]
    assert all(row["accuracy"] is not None for row in run.rows)
    assert len(list(run.directory.models.glob("final-group-*.safetensors"))) > 1
