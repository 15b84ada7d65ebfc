"""All nodes are lost while they tell their profile: the round is begun again when they are back, to the same bits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Describe, Discriminate, Evaluate, Order, Work
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node.worker import Worker
from tests.support.cluster import Finished, play
from tests.support.coming_and_going import away_between
from tests.support.gated_task import gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.reference import assert_same_bits
from top_server.record.journal import Line
from top_server.record.model_files import load

#: Scheme -> its options, and the round and the work in which all are lost.
CASES: dict[str, tuple[dict[str, str], int, type[Work]]] = {
    "fedgsp": ({}, 1, Describe),
    "fedfa": ({}, 2, Evaluate),
    "ifca": ({"models": "2"}, 2, Evaluate),
    "flsc": ({"models": "3"}, 2, Evaluate),
    "maxfl": ({"prior_epochs": "2"}, 2, Evaluate),
    "maxfl-hcct": ({"prior_epochs": "2"}, 2, Evaluate),
    "fedcollab": ({"exchanges": "4", "judge_every": "2"}, 1, Discriminate),
}
#: The kind of work with the most messages; the others are played on demand.
OFTEN = ("fedcollab",)


def models(run: Finished) -> dict[str, np.ndarray]:
    paths = sorted(run.directory.models.glob("final*.safetensors"))
    assert paths
    return {f"{path.name}: {name}": array for path in paths for name, array in load(path)[0].items()}


def configured(tmp_path: Path, scheme: str) -> RunConfig:
    growing: dict[str, Any] = {"beta": 2, "sampling_rate": 1.0} if scheme == "fedgsp" else {}
    changes = {"scheme": scheme, "profile_option": CASES[scheme][0], "rounds": 2, "min_nodes": 2, **growing}
    return gated_settings(tmp_path, **changes)


def hosts(folder: Path) -> list[NodeSettings]:
    """What clients trained alone outlives their node; the prior models do not."""
    return [host("n0", 0, 3, 4, state_dir=folder / "n0"), host("n1", 1, 2, state_dir=folder / "n1")]


async def disturbed(folder: Path, scheme: str, number: int, kind: type[Work]) -> Finished:
    """Played with nodes that go at the first such order in a round, and come back when that round has failed."""
    hit, failed = asyncio.Event(), asyncio.Event()
    carry_out = Worker.carry_out

    async def told(self: Worker, order: Order, *arguments: Any) -> Any:
        asked = isinstance(order.work, kind) and not (
            isinstance(order.work, Evaluate) and not order.work.training_part
        )
        if asked and order.key is not None and order.key.round == number and not failed.is_set():
            hit.set()
            await asyncio.Event().wait()
        return await carry_out(self, order, *arguments)

    def watch(event: Line) -> None:
        if event["event"] == "round_failed":
            failed.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "carry_out", told)
        both = [(node, away_between(hit, failed)) for node in hosts(folder)]
        return await play(configured(folder, scheme), [], both, watch)


@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in CASES]
)
async def test_a_round_whose_nodes_are_all_lost_as_they_tell_of_themselves_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    _, number, kind = CASES[scheme]
    managers_here(monkeypatch)
    undisturbed = await play(configured(tmp_path / "calm", scheme), hosts(tmp_path / "calm"))
    run = await disturbed(tmp_path / "hit", scheme, number, kind)
    assert [event["round"] for event in run.of_kind("round_failed")] == [number]
    assert [row["clients_trained"] for row in run.rows] == [row["clients_trained"] for row in undisturbed.rows]
    assert_same_bits(models(run), models(undisturbed))
