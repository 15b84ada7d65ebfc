"""A group manager has no room for a model for a moment: no client loses its model for it, and the record says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, ModelRef
from fedgsp.settings.run import NodeSettings
from fedgsp.tensors.weights import Weights, WeightsError
from group_manager.models import Models
from tests.support.cluster import Finished, play
from tests.support.extended import resumed
from tests.support.gated_task import gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.reference import assert_same_bits
from top_server import rounds
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines
from top_server.record.model_files import load

NO_ROOM = "there is no disk for its bytes"
FULL = f"unspecified: the group manager is full: {NO_ROOM}"


def hosts() -> list[NodeSettings]:
    return [host("n0", *range(3)), host("n1", *range(3, 6))]


def final(run: Finished) -> dict[str, np.ndarray]:
    paths = sorted(run.directory.models.glob("final*.safetensors"))
    return {f"{path.stem} {name}": array for path in paths for name, array in load(path)[0].items()}


def fills(monkeypatch: pytest.MonkeyPatch, program: str, number: int, times: int = 1) -> list[str]:
    """Lets the manager refuse the model of client 3 in a round, so many times; returns the ids of these models."""
    reserve, filled = Models.reserve, list[str]()

    async def fill(self: Models, model_id: str) -> ModelRef | Failure:
        asked = (self._request.program, self._request.round) == (program, number) and "/3." in model_id
        if asked and len(filled) < times:
            filled.append(model_id)
            self.note_full(NO_ROOM)
            await asyncio.Event().wait()  # until the group has ended
        return await reserve(self, model_id)

    monkeypatch.setattr(Models, "reserve", fill)
    return filled


async def test_clients_that_cannot_be_asked_keep_what_they_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FeSEM: the manager has no room for the model that the clients' own models are to be compared with."""
    managers_here(monkeypatch)
    config: dict[str, Any] = {"scheme": "fesem", "relay": "manager"}
    calm = await play(gated_settings(tmp_path / "calm", **config), hosts())
    fetch, filled = Models._fetch_from_top_server, list[str]()

    async def fill(self: Models, model_id: str, digest: bytes) -> Weights:
        if (self._request.program, self._request.round) == ("distance", 3) and not filled:
            filled.append(model_id)
            raise WeightsError(FailureCode.NO_ROOM, NO_ROOM)
        return await fetch(self, model_id, digest)

    monkeypatch.setattr(Models, "_fetch_from_top_server", fill)
    monkeypatch.setattr(rounds, "AGAIN_AFTER_S", 0.0)
    run = await play(gated_settings(tmp_path, **config), hosts())
    assert len(filled) == 1
    (failed,) = run.of_kind("question_failed")
    assert failed.items() >= {"round": 3, "program": "distance", "clients": [*range(6)]}.items()
    assert failed["reason"].startswith(FULL)
    assert [event["round"] for event in run.of_kind("round_failed")] == [3]
    assert not run.of_kind("model_lost")
    assert not run.of_kind("clients_missed")
    assert [row["partition"] for row in run.rows] == [row["partition"] for row in calm.rows]
    assert_same_bits(final(run), final(calm))


@pytest.mark.parametrize("scheme", ["flsc", "hcct"])
async def test_of_clients_that_train_alone_those_have_no_result_for_which_there_was_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """For the model of client 3 (FLSC), or for the update that it reveals (HCCT)."""
    managers_here(monkeypatch)
    filled = fills(monkeypatch, "alone", 2)
    grouping: dict[str, Any] = {"grouping_option": {"alpha": "0"}} if scheme == "hcct" else {}
    run = await play(gated_settings(tmp_path, scheme=scheme, rounds=3, **grouping), [host("n0", *range(6))])
    assert len(filled) == 1
    group_of = {team[0]: group for group, team in enumerate(run.of_kind("round_started")[1]["teams"])}
    finished = [event["group"] for event in run.of_kind("group_finished") if event["round"] == 2]
    assert sorted(finished) == sorted(group_of[client] for client in (0, 1, 2))
    failed = run.of_kind("group_failed")
    assert sorted(event["group"] for event in failed) == sorted(group_of[client] for client in (3, 4, 5))
    assert all(event["reason"].startswith(FULL) for event in failed)
    (missed,) = run.of_kind("clients_missed")
    assert missed.items() >= {"clients": [3, 4, 5], "first": 2, "last": 2, "code": "GROUP_FAILED"}.items()
    assert [(row["clients_trained"], row["clients_skipped"]) for row in run.rows] == [(6, 0), (3, 3), (6, 0)]
    assert not run.of_kind("model_lost")


@pytest.mark.parametrize("times", [1, 2])
async def test_the_last_models_of_clients_that_are_alone_are_all_saved_or_the_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    managers_here(monkeypatch)
    node, independent = host("n0", *range(6), state_dir=tmp_path / "n0"), {"scheme": "independent", "rounds": 2}
    calm = await play(gated_settings(tmp_path / "calm", **independent), [host("n0", *range(6))])
    filled = fills(monkeypatch, "collect", 2, times)
    config = gated_settings(tmp_path, **independent)
    if times == 1:
        run = await play(config, [node])
    else:
        with pytest.raises(ExceptionGroup) as caught:
            await play(config, [node])
        assert f"the models of clients 3, 4, 5 cannot be saved: {FULL}" in str(caught.value.exceptions[0])
        directory = RunDirectory(tmp_path / "run")
        told = [event for event in read_lines(directory.events) if event["event"] == "model_not_saved"]
        assert [event["client"] for event in told] == [3, 4, 5]
        run = await resumed(directory, [node])
    assert len(filled) == times
    assert not run.of_kind("model_not_saved")
    assert_same_bits(final(run), final(calm))
