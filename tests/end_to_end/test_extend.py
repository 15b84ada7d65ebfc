"""A finished run that is extended has the bits of a run that was that long from the start."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.files import dump, load
from fedgsp.settings.run import NodeSettings, RunConfig
from tests.support.cluster import nodes, play, settings
from tests.support.extended import extended
from tests.support.extended import resumed as continued
from tests.support.managers_here import managers_here
from tests.support.processes import assert_gone, program, resumed, top_server
from top_server import audit
from top_server.record.directory import RunDirectory, write_config
from top_server.record.events.run import RunResumed
from top_server.record.history import read_lines
from top_server.record.journal import Journal
from top_server.record.model_files import load as load_model
from top_server.resume import state
from top_server.resume.audit import opened

CLIENTS = 6
SHORT, LONG = 2, 4
SCHEMES: dict[str, dict[str, Any]] = {
    "hcct-p": {"profile_option": {"similarity": "layer"}},
    "fedgsp": {"beta": 2, "sampling_rate": 1.0},
    "fedavg": {"optimizer": "sgd", "optimizer_option": {"momentum": "0.9"}, "optimizer_state": "kept"},
    "fedyogi": {},
    "ditto": {},
    "hcct": {},
    "independent": {},
    "flsc": {},
    "fesem": {"profile_option": {"models": "3"}},
    "fedfusion": {},
    "ida": {"aggregation_option": {"times": "intrac"}},
    "kmeans": {"profile_option": {"prior_epochs": "1"}},
    "maxfl-hcct": {"profile_option": {"prior_epochs": "1"}},
    "fedcollab": {"profile_option": {"exchanges": "3"}},
}


def configured(folder: Path, scheme: str, rounds: int, **changes: Any) -> RunConfig:
    task = {"task_option": {"clients": str(CLIENTS)}, "keep_models": "last", "min_clients": CLIENTS}
    return settings(folder, **{"scheme": scheme, "rounds": rounds, **task, **SCHEMES[scheme], **changes})


def hosts(folder: Path | None) -> list[NodeSettings]:
    """Two nodes; with a folder they keep what stays with their clients beyond their end."""
    return [
        dataclasses.replace(node, state_dir=folder / str(node.name) if folder is not None else None)
        for node in nodes([0, 3, 5], [1, 2, 4], clients=str(CLIENTS))
    ]


def alone(folder: Path | None) -> list[NodeSettings]:
    """One node: several in one process would share the state of torch's random numbers."""
    (node,) = nodes(range(CLIENTS), clients=str(CLIENTS))
    return [dataclasses.replace(node, state_dir=folder)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "scheme",
    [pytest.param(name, marks=[] if name == "hcct-p" else [pytest.mark.slow]) for name in SCHEMES],
)
async def test_an_extended_run_has_the_bits_of_a_longer_one(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    longer = await play(configured(tmp_path / "long", scheme, LONG), alone(None))
    kept = alone(tmp_path / "kept")
    short = await play(configured(tmp_path / "run", scheme, SHORT), kept)
    on = await extended(short.directory, LONG, kept)
    assert [row["round"] for row in on.rows] == [1, 2, 3, 4]
    measured = {"seconds", "bytes_direct", "bytes_relayed", "bytes_travelled"}
    assert [{name: row[name] for name in row.keys() - measured} for row in on.rows] == [
        {name: row[name] for name in row.keys() - measured - {"time", "event"}} for row in longer.rows
    ]
    assert_same_models(on.directory, longer.directory)
    assert audit.verify(on.directory).finished
    assert load(RunConfig, on.directory.config).rounds == LONG
    found = json.loads(on.directory.summary.read_text())
    assert found.pop("extended_after") == [SHORT]
    assert found == (json.loads(longer.directory.summary.read_text()) if longer.directory.summary.exists() else {})


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        pytest.param("fedavg", {"sampling_rate": 1.0}, marks=pytest.mark.slow),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in ("hcct-p", "hcct", "independent")),
        pytest.param("ditto", {}, marks=pytest.mark.slow),
    ],
)
async def test_without_what_nodes_kept_it_is_refused_and_the_run_stays_finished(
    tmp_path: Path, scheme: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    kept = hosts(tmp_path / "kept")
    config = configured(tmp_path / "run", scheme, SHORT, **changes)
    short = await play(config, kept)
    forgot = [kept[0], dataclasses.replace(kept[1], state_dir=None)]
    with pytest.raises(ExceptionGroup) as caught:
        await extended(short.directory, LONG, forgot)
    (error,) = caught.value.exceptions
    assert "the nodes of clients 1, 2, 4 do not have what they kept for them in the run" in str(error)
    assert audit.verify(short.directory).finished
    assert load(RunConfig, short.directory.config).rounds == SHORT
    on = await extended(short.directory, LONG, kept)
    assert [row["round"] for row in on.rows] == [1, 2, 3, 4]


async def test_a_client_that_does_not_come_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    short = await play(configured(tmp_path / "run", "fedgsp", SHORT, join_timeout=2.0), hosts(None))
    with pytest.raises(ExceptionGroup) as caught:
        await extended(short.directory, LONG, hosts(None)[:1])
    (error,) = caught.value.exceptions
    assert "clients 1, 2, 4 of the run did not come within 2 s" in str(error)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_an_extension_that_was_killed_with_everything_is_resumed_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    longer = await play(configured(tmp_path / "long", "hcct-p", LONG), nodes(range(CLIENTS), clients=str(CLIENTS)))
    config = tmp_path / "run.toml"
    config.write_text(dump(configured(tmp_path / "run", "hcct-p", SHORT)))
    flags = ("--run-dir", str(tmp_path / "run"), "--config", str(config), "--local-nodes", "2", "--clients", "6")
    async with top_server(tmp_path, *flags) as process:
        assert await process.ended(90) == 0, process.errors
    command = ["top_server", "--json", "--extend", str(tmp_path / "run"), "--rounds", str(LONG)]
    async with program(command, tmp_path / "extended.log") as process:
        await process.event("round_started", round=SHORT + 1)
        await process.event("hop_finished", round=SHORT + 1)
        family = process.family()
        process.send(SIGKILL)
        await assert_gone(family)
    async with resumed(tmp_path / "run") as process:
        assert await process.ended(90) == 0, process.errors
    directory = RunDirectory(tmp_path / "run")
    assert [row["round"] for row in read_lines(directory.history)] == [1, 2, 3, 4]
    assert json.loads(directory.summary.read_text())["extended_after"] == [SHORT]
    assert audit.verify(directory).finished
    assert_same_models(directory, longer.directory)


STEPS = ("config", "event", "note", "state")


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=pytest.mark.slow) for step in ("event", "config", "note", "state")]
)
async def test_an_extension_that_is_cut_off_after_any_step_of_its_begin_is_extended_again_or_resumed(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    longer = await play(configured(tmp_path / "long", "fedgsp", LONG), hosts(None))
    short = await play(configured(tmp_path / "run", "fedgsp", SHORT), hosts(None))
    begin_to_extend(short.directory, STEPS.index(step))
    if step == "config":
        with pytest.raises(ConfigError, match="that run is finished"):
            await continued(short.directory, hosts(None))
        on = await extended(short.directory, LONG, hosts(None))
    else:
        with pytest.raises(ConfigError, match="that run is not finished"):
            await extended(short.directory, LONG, hosts(None))
        on = await continued(short.directory, hosts(None))
    assert [row["round"] for row in on.rows] == [1, 2, 3, 4]
    assert_same_models(on.directory, longer.directory)
    assert audit.verify(on.directory).finished


def begin_to_extend(directory: RunDirectory, steps: int) -> None:
    """Leaves a finished run as a top server that extends it would, cut off after so many steps beyond the first."""
    begun = next(event for event in read_lines(directory.events) if event["event"] == "run_started")
    config = dataclasses.replace(load(RunConfig, directory.config), rounds=LONG)
    write_config(directory, config)
    if steps > 0:
        with Journal(directory) as journal:
            told = {name: value for name, value in begun.items() if name not in ("time", "event")}
            journal.record(RunResumed(**told | {"round": SHORT, "rounds": LONG}))
    if steps > 1:
        with opened(directory, begun["run"], None, None, resumed=True) as log:
            log.note("extended", rounds=LONG)
    if steps > 2:
        state.reopen(directory)


def assert_same_models(directory: RunDirectory, other: RunDirectory) -> None:
    expected = sorted(other.models.iterdir())
    assert [path.name for path in sorted(directory.models.iterdir())] == [path.name for path in expected]
    for path in expected:
        tensors, _ = load_model(path)
        for name, tensor in load_model(directory.models / path.name)[0].items():
            assert tensor.tobytes() == tensors[name].tobytes()
