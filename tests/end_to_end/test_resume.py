"""Everything is killed at once, or stopped: the run that is resumed has the bits of one that nobody disturbed."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from tests.support.processes import assert_gone, node, resumed, top_server
from top_server import audit
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.record.model_files import load

CLIENTS, ROUNDS = 6, 3
ROOT = Path(__file__).resolve().parents[2]
#: Too many to be measured in the suite's time.
QUICK = {"exchanges": "3"}
SCHEMES: dict[str, dict[str, Any]] = {
    "hcct-p": {},
    "fedgsp": {"beta": 2, "sampling_rate": 1.0},
    "fedavg": {},
    "fedmmd": {},
    "ida": {"aggregation_option": {"times": "intrac"}},
    "fedadagrad": {},
    "fedadam": {},
    "hcct": {},
    "ditto": {},
    "fedfusion": {"training_option": {"operator": "multi"}, "sampling_rate": 1.0},
    "maxfl": {"profile_option": {"prior_epochs": "1"}},
    "maxfl-hcct": {"profile_option": {"prior_epochs": "1"}},
    "kmeans": {"profile_option": {"prior_epochs": "1"}},
    "ifca": {},
    "flsc": {},
    # at lower rates nobody changes clusters, and no start is made of members' models
    "fesem": {"learning_rate": 0.8, "profile_option": {"models": "3"}},
    "fedcollab": {"profile_option": QUICK},
}
#: Whoever's update were lost would be alone in the last round.
RELAYED = {"program": "relay", "grouping_option": {"groups": "1"}}


def configured(folder: Path, scheme: str, **changes: Any) -> RunConfig:
    task = {"task_option": {"clients": str(CLIENTS)}, "keep_models": "last"}
    return settings(folder, **{"scheme": scheme, "rounds": ROUNDS, **task, **SCHEMES[scheme], **changes})


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=[] if name == "hcct-p" else [pytest.mark.slow]) for name in SCHEMES]
)
async def test_a_run_that_was_killed_with_everything_goes_on_to_the_same_bits(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    # On one node: several in one process would share the state of torch's random numbers.
    undisturbed = await play(configured(tmp_path / "a", scheme), nodes(range(CLIENTS), clients=str(CLIENTS)))
    config = tmp_path / "b.toml"
    config.write_text(dump(configured(tmp_path / "b", scheme)))
    flags = ("--run-dir", str(tmp_path / "b"), "--config", str(config), "--local-nodes", "2", "--clients", "6")
    async with top_server(tmp_path, *flags) as server:
        await server.event("round_finished", round=1)
        await server.event("hop_finished", round=2)
        family = server.family()
        server.send(SIGKILL)
        await assert_gone(family)
    async with resumed(tmp_path / "b") as server:
        assert await server.ended(90) == 0, server.errors
        assert [event["round"] for event in server.events if event["event"] == "round_finished"][-1] == ROUNDS
    assert sorted(path.name for path in (tmp_path / "b" / "state").iterdir()) == ["finished-0003", "node-0", "node-1"]
    assert_same_models(tmp_path / "b", undisturbed.directory.path)


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("scheme", "changes", "killed"),
    [
        pytest.param("fedgsp", {}, False, marks=pytest.mark.slow),
        pytest.param("hcct", RELAYED, True, marks=pytest.mark.slow),
    ],
)
async def test_nodes_wait_for_a_run_to_be_resumed(
    tmp_path: Path, scheme: str, changes: dict[str, Any], killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, or killed with the managers, which then tell no node to forget anything."""
    managers_here(monkeypatch)
    six = nodes(range(CLIENTS), clients=str(CLIENTS))
    undisturbed = await play(configured(tmp_path / "a", scheme, **changes), six)
    config = tmp_path / "b.toml"
    config.write_text(dump(configured(tmp_path / "b", scheme, **changes)))
    own = ("--task-option", f"clients={CLIENTS}", "--policy", "none")
    async with AsyncExitStack() as stack:
        flags = ("--run-dir", str(tmp_path / "b"), "--config", str(config), "--min-nodes", "2")
        server = await stack.enter_async_context(top_server(tmp_path, *flags))
        address = (await server.event("listening"))["address"]
        started = [
            await stack.enter_async_context(node(tmp_path, address, *own, "--clients", clients, name=name))
            for name, clients in (("n0", "0-2"), ("n1", "3-5"))
        ]
        await server.event("hop_finished", round=2)
        if killed:
            for process in server.family():
                process.kill()
        else:
            server.send(SIGTERM)
        assert await server.ended(30) == (-SIGKILL if killed else 143)
        again = await stack.enter_async_context(resumed(tmp_path / "b"))
        for process in (again, *started):
            assert await process.ended(90) == 0, process.errors
    told = [any("the run may be resumed" in line for line in process.lines) for process in started]
    assert all(told) is not killed
    assert_same_models(tmp_path / "b", undisturbed.directory.path)


def assert_same_models(directory: Path, other: Path) -> None:
    assert audit.verify(RunDirectory(directory)).finished
    expected = sorted((other / "models").iterdir())
    assert [path.name for path in sorted((directory / "models").iterdir())] == [path.name for path in expected]
    for path in expected:
        tensors, _ = load(path)
        for name, tensor in load(directory / "models" / path.name)[0].items():
            assert tensor.tobytes() == tensors[name].tobytes()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_resumed_run_has_the_scores_metrics_and_names_of_one_that_nobody_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    shutil.copy(ROOT / "examples" / "screening.py", tmp_path)
    given: dict[str, Any] = {"scheme": "hcct", "rounds": ROUNDS, "task_option": {}, "join_timeout": 90.0}
    alike = dataclasses.replace(nodes(range(4))[0], task="examples.screening:Hospitals", task_option={})
    run = await play(settings(tmp_path / "a", **given, task="examples.screening:Hospitals"), [alike])
    config = tmp_path / "b.toml"
    config.write_text(dump(settings(tmp_path / "b", **given, task="screening:Hospitals")))
    flags = ("--run-dir", str(tmp_path / "b"), "--config", str(config), "--local-nodes", "1", "--clients", "4")
    async with top_server(tmp_path, *flags) as server:
        await server.event("hop_finished", round=2)  # the state after round 1 is saved
        family = server.family()
        server.send(SIGKILL)
        await assert_gone(family)
    async with resumed(tmp_path / "b") as server:
        assert await server.ended(90) == 0, server.errors
    directory = RunDirectory(tmp_path / "b")
    names = ("scored_by", "score", "score_per_client", "metrics", "metrics_per_client", "accuracy")
    told = [{name: row[name] for name in names} for row in read_lines(directory.history)]
    assert told == [{name: row[name] for name in names} for row in run.rows]
    assert directory.summary.read_bytes() == run.directory.summary.read_bytes()
    assert len([event for event in read_lines(directory.events) if event["event"] == "metric_left_out"]) == 1
