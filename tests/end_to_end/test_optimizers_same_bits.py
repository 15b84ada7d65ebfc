"""Optimisers, schedules, clipping and accumulation in real runs, against plain torch, bit for bit."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.digits import Digits
from tests.support import cluster
from tests.support.cluster import play
from tests.support.keeping import Keeping
from tests.support.managers_here import managers_here
from tests.support.reference import Reference, assert_same_bits
from tests.support.reference_groups import GroupReference, assert_final_models

EIGHT = range(8)
TASK = {"clients": "24"}
HOSTS = ([7, 0, 3], [1, 2], [4, 5, 6])


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


def settings(tmp_path: Path, **changes: Any) -> RunConfig:
    return cluster.settings(tmp_path / "run", **{"task_option": TASK, "min_clients": 8, "rounds": 3, **changes})


def nodes() -> list[NodeSettings]:
    return cluster.nodes(*HOSTS, clients="24")


def reference(**changes: Any) -> Reference:
    given = {"rounds": 3, "beta": 2, "sampling_rate": 1.0, **changes}
    return Reference(load_task("digits", TASK), EIGHT, **given)


def adamw(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1, betas=(0.8, 0.99))


ADAMW = {
    "optimizer": "adamw",
    "optimizer_option": {"weight_decay": "0.1", "beta1": "0.8", "beta2": "0.99"},
    "learning_rate": 0.003,
}


async def test_a_relay_with_adamw_and_everything_else_has_the_oracles_bits(tmp_path: Path) -> None:
    falling = {"horizon": "4"}
    expected = reference(
        learning_rate=0.003,
        optimizer=adamw,
        of_round=lambda number: 1 - (number - 1) / 4,
        of_step=lambda place, steps: (place + 1) / 3 if place < 2 else 1.0,
        clip_norm=0.5,
        accumulate=2,
        local_epochs=2,
    ).play_fedgsp()
    run = await play(
        settings(
            tmp_path,
            **ADAMW,
            schedule="linear",
            schedule_option=falling,
            local_schedule_option={"warmup": "2"},
            clip_norm=0.5,
            accumulate=2,
            local_epochs=2,
        ),
        nodes(),
    )
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)


@pytest.mark.slow
async def test_fedavg_with_momentum_has_the_oracles_bits(tmp_path: Path) -> None:
    expected = reference(
        sampling_rate=0.7,
        optimizer=lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=0.01),
    ).play_fedavg()
    options = {"momentum": "0.9", "weight_decay": "0.01"}
    run = await play(
        settings(tmp_path, scheme="fedavg", sampling_rate=0.7, optimizer="sgd", optimizer_option=options), nodes()
    )
    assert_same_bits(run.model(3), expected[-1])


@pytest.mark.slow
async def test_hcct_groups_by_what_adam_has_changed(tmp_path: Path) -> None:
    expected = GroupReference(
        load_task("digits", TASK),
        EIGHT,
        rounds=2,
        learning_rate=0.003,
        optimizer=adamw,
    ).play_hcct()
    run = await play(settings(tmp_path, scheme="hcct", rounds=2, **ADAMW), nodes())
    assert_final_models(run, expected[-1].models)


class OwnDigits(Digits):
    """The digits with an optimiser of their own."""

    def optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        return adamw(parameters, learning_rate)


async def test_the_tasks_own_optimiser_is_used_without_a_flag(tmp_path: Path) -> None:
    name = f"{__name__}:OwnDigits"
    own = [dataclasses.replace(node, task=name) for node in nodes()]
    run = await play(settings(tmp_path, task=name, learning_rate=0.003), own)
    assert_same_bits(run.model(3), reference(learning_rate=0.003, optimizer=adamw).play_fedgsp()[-1])


async def test_a_schedule_that_ends_within_a_training_skips_the_client_with_the_reason(tmp_path: Path) -> None:
    # Clients have 8 to 128 samples: with batches of 5, the small ones end before 10 steps.
    config = settings(
        tmp_path,
        scheme="fedavg",
        rounds=1,
        sampling_rate=1.0,
        local_schedule="linear",
        local_schedule_option={"horizon": "10"},
    )
    run = await play(config, nodes())
    told = [event["reason"] for event in run.of_kind("client_skipped")]
    assert told
    why = re.compile(r"round or step \d\d is beyond the horizon 10 of schedule linear; give a larger horizon")
    assert all(map(why.search, told))
    assert {event["code"] for event in run.of_kind("client_skipped")} == {"BAD_ORDER"}  # the task did nothing wrong
    assert run.rows[0]["clients_trained"] == 8 - len(told) > 0


# --- state that stays with the clients


@pytest.mark.parametrize(
    ("optimizer", "scheme"),
    [
        pytest.param(*both, marks=[] if both == ("momentum", "fedavg") else [pytest.mark.slow])
        for both in itertools.product(["adamw", "nadam", "momentum"], ["fedgsp", "fedavg"])
    ],
)
async def test_state_that_clients_keep_has_the_oracles_bits(tmp_path: Path, scheme: str, optimizer: str) -> None:
    kinds: dict[str, tuple[dict[str, Any], Any]] = {
        "adamw": (ADAMW, adamw),
        "nadam": ({"optimizer": "nadam", "learning_rate": 0.003}, lambda p, rate: torch.optim.NAdam(p, lr=rate)),
        "momentum": (
            {"optimizer": "sgd", "optimizer_option": {"momentum": "0.9"}, "learning_rate": 0.003},
            lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9),
        ),
    }
    chosen, make = kinds[optimizer]
    given = {"rounds": 3, "beta": 2, "sampling_rate": 1.0, "learning_rate": 0.003, "optimizer": make}
    oracle = Keeping(load_task("digits", TASK), EIGHT, **given)
    expected = oracle.play_fedgsp() if scheme == "fedgsp" else oracle.play_fedavg()
    run = await play(settings(tmp_path, scheme=scheme, sampling_rate=1.0, optimizer_state="kept", **chosen), nodes())
    for number, state in enumerate(expected, 1):
        assert_same_bits(run.model(number), state)
    fresh = reference(learning_rate=0.003, optimizer=make)
    assert any(
        array.tobytes() != expected[-1][name].tobytes()
        for name, array in (fresh.play_fedgsp() if scheme == "fedgsp" else fresh.play_fedavg())[-1].items()
    )
