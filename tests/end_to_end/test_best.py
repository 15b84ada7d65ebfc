"""The best round by validation, and the end of a run that waits for a better one, are those of an independent run."""

from __future__ import annotations

import json
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import ConfigError
from fedgsp.messages import Failure, FailureCode
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp_node.clients import Clients
from fedgsp_node.kept.learned import Learned
from fedgsp_node.order_error import OrderError
from fedgsp_node.tasks import load_task
from tests.support.cluster import nodes, play, settings
from tests.support.extended import extended
from tests.support.managers_here import managers_here
from tests.support.processes import assert_gone, resumed, top_server
from tests.support.reference import Reference, State, assert_same_bits
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.record.model_files import load

SIX = range(6)
TASK = {"clients": "24", "validation_share": "0.3"}
#: The second round is better than the first, and the third is worse.
RATE, ROUNDS, BEST, LAST = 0.05, 6, 2, 3
TRAIN = Clients.train


def configured(folder: Path, **changes: Any) -> RunConfig:
    given = {"task_option": TASK, "min_clients": 6, "rounds": ROUNDS, "beta": 1, "learning_rate": RATE}
    return settings(folder, **{**given, "patience": 1, "keep_models": "best", **changes})


def accuracy(state: State) -> float:
    """On the validation parts of all clients, weighted by samples."""
    task, right, samples = load_task("digits", TASK), 0, 0
    module = task.model()
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    for client in SIX:
        part = task.data(client).validation
        assert part is not None
        with torch.inference_mode():
            right += int((module.eval()(torch.from_numpy(part.x)).argmax(1).numpy() == part.y).sum())
        samples += len(part)
    return right / samples


def oracle(skipped: int | None = None) -> tuple[list[State], list[float]]:
    reference = Reference(
        load_task("digits", TASK),
        SIX,
        rounds=LAST,
        beta=1,
        sampling_rate=1.0,
        learning_rate=RATE,
        takes_part=lambda _round, _group, client: client != skipped,
    )
    models = reference.play_fedgsp()
    scores = [accuracy(model) for model in models]
    assert scores[1] > scores[0]
    assert scores[2] <= scores[1]
    return models, scores


def assert_ended_early(directory: RunDirectory, models: list[State]) -> None:
    assert sorted(path.name for path in directory.models.iterdir()) == ["best.safetensors", "final.safetensors"]
    assert_same_bits(load(directory.models / "best.safetensors")[0], models[BEST - 1])
    assert_same_bits(load(directory.models / "final.safetensors")[0], models[LAST - 1])
    found = json.loads(directory.summary.read_text())["validated"]
    assert (found["chosen_by"], found["round"]) == ("validation accuracy", BEST)
    assert found["test"]["accuracy"] == read_lines(directory.history)[BEST - 1]["accuracy"]


async def test_a_run_keeps_its_best_model_and_ends_early_also_if_a_client_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)

    def train(self: Clients, client: int, *arguments: Any) -> Learned:
        if client == 5:
            raise OrderError(Failure(FailureCode.TASK_RAISED, "its disk is gone"))
        return TRAIN(self, client, *arguments)

    monkeypatch.setattr(Clients, "train", train)
    models, scores = oracle(skipped=5)
    hosts = nodes([0, 3, 5], [1, 2, 4], clients="24", validation_share="0.3")
    run = await play(configured(tmp_path / "run"), hosts)
    assert {event["client"] for event in run.of_kind("client_skipped")} == {5}
    assert [row["validation"]["accuracy"] for row in run.rows] == scores
    assert_ended_early(run.directory, models)
    assert [event["best"] for event in run.of_kind("stopped_early")] == [BEST]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_so_does_a_run_that_was_killed_with_everything(tmp_path: Path) -> None:
    models, _ = oracle()
    config = tmp_path / "run.toml"
    config.write_text(dump(configured(tmp_path / "run")))
    flags = ("--run-dir", str(tmp_path / "run"), "--config", str(config), "--local-nodes", "2", "--clients", "6")
    async with top_server(tmp_path, *flags) as server:
        await server.event("round_finished", round=BEST)
        await server.event("hop_finished", round=LAST)
        family = server.family()
        server.send(SIGKILL)
        await assert_gone(family)
    async with resumed(tmp_path / "run") as server:
        assert await server.ended(90) == 0, server.errors
    assert_ended_early(RunDirectory(tmp_path / "run"), models)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
async def test_so_does_a_run_that_was_extended(tmp_path: Path, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    models, _ = oracle()
    hosts = nodes(SIX, clients="24", validation_share="0.3")
    short = await play(configured(tmp_path / "run", rounds=rounds), hosts)
    on = await extended(short.directory, ROUNDS, hosts)
    assert_ended_early(on.directory, models)


async def test_without_validation_data_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    with pytest.raises(ExceptionGroup) as caught:
        await play(configured(tmp_path / "run", task_option={"clients": "24"}), nodes(SIX, clients="24"))
    refused = [error for error in caught.value.exceptions if isinstance(error, ConfigError)]
    assert "--patience needs validation data" in refused[0].what
