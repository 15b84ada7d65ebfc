"""FedAdagrad, FedAdam and FedYogi in real runs equal the oracle bit for bit, also after everything was killed."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from fedgsp.settings.files import dump
from fedgsp_node.tasks import load_task
from tests.support.cluster import play, settings
from tests.support.gated_task import GatedBlobs, gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.processes import assert_gone, resumed, top_server
from tests.support.reference import Reference, assert_same_bits
from tests.support.reference_optimisers import PlainOptimiser, parameters_of
from top_server.record.model_files import load

COMMON: dict[str, Any] = {"rounds": 3, "sampling_rate": 0.7, "batch_size": 8, "learning_rate": 0.05}


def optimiser(rule: str, reference: Reference, eta: float = 0.02) -> PlainOptimiser:
    return PlainOptimiser(rule, parameters_of(reference.task.model()), eta, b1=0.0 if rule == "fedadagrad" else 0.9)


@pytest.mark.parametrize("scheme", ["fedadagrad", "fedadam", "fedyogi"])
async def test_the_schemes_equal_the_oracle(tmp_path: Path, scheme: str) -> None:
    """The model has batch normalisation, whose statistics are no parameters."""
    more = {"merge_option": {"eta": "0.02"}, "learning_rate_decay": 1.0, "keep_models": "all", "min_nodes": 2}
    run = await play(
        gated_settings(tmp_path, scheme=scheme, **COMMON, **more), [host("n0", 0, 3, 4), host("n1", 1, 2)]
    )
    reference = Reference(GatedBlobs(), range(5), **COMMON)
    reference.step = optimiser(scheme, reference)
    for number, model in enumerate(reference.play_fedavg(), 1):
        assert_same_bits(run.model(number), model)


async def test_groups_of_fedgsp_relay_inside_and_are_merged_by_yogi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    common = {**COMMON, "beta": 2, "sampling_rate": 1.0}
    more = {"merge_option": {"eta": "0.02"}, "learning_rate_decay": 1.0, "keep_models": "all", "min_nodes": 2}
    config = gated_settings(tmp_path, scheme="fedgsp", merge="fedyogi", **common, **more)
    run = await play(config, [host("n0", 0, 3, 4), host("n1", 1, 2)])
    assert max(row["groups"] for row in run.rows) > 1
    reference = Reference(GatedBlobs(), range(5), **common)
    reference.step = optimiser("fedyogi", reference)
    for number, model in enumerate(reference.play_fedgsp(), 1):
        assert_same_bits(run.model(number), model)


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_a_run_that_was_killed_with_everything_goes_on_with_its_moments(tmp_path: Path) -> None:
    task = {"clients": "6"}
    changes: dict[str, Any] = {"scheme": "fedyogi", "rounds": 3, "sampling_rate": 0.5, "keep_models": "last"}
    changes |= {"task_option": task, "merge_option": {"eta": "0.01"}}
    folder, config = tmp_path / "run", tmp_path / "run.toml"
    config.write_text(dump(settings(folder, **changes)))
    flags = ("--run-dir", str(folder), "--config", str(config), "--local-nodes", "2", "--clients", "6")
    async with top_server(tmp_path, *flags) as server:
        await server.event("round_finished", round=1)
        await server.event("hop_finished", round=2)
        family = server.family()
        server.send(SIGKILL)
        await assert_gone(family)
    async with resumed(folder) as server:
        assert await server.ended(90) == 0, server.errors
    reference = Reference(load_task("digits", task), range(6), rounds=3, sampling_rate=0.5)
    reference.step = optimiser("fedyogi", reference, 0.01)
    assert_same_bits(load(folder / "models" / "final.safetensors")[0], reference.play_fedavg()[-1])
