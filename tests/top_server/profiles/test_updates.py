"""What clients may show of their updates, and who is a newcomer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import Failure, FailureCode, TensorSpec
from fedgsp.tensors.updates import LENGTH_BYTES
from tests.support.scripted import model
from tests.support.surveyed import Surveys, surveyed
from top_server.evidence import Evidence
from top_server.models import client_slot
from top_server.nodes.membership import Membership
from top_server.profiles.updates import UpdateProfile
from top_server.reveals.updates import most_bytes

GONE = Failure(FailureCode.UNREACHABLE, "the manager is gone")


@pytest.mark.parametrize(
    ("dtype", "values", "sketch", "most"),
    [
        ("float32", 1000, 16, 4000),
        ("float16", 1000, 16, 4000),  # the update is twice as large as the model
        ("float64", 1000, 16, 8000),
        ("float32", 1000, 65536, LENGTH_BYTES + 65536),
    ],
)
def test_as_much_may_come_as_the_largest_view_has(dtype: str, values: int, sketch: int, most: int) -> None:
    assert most <= most_bytes((TensorSpec("w", dtype, (values,)),), sketch) <= most + 8


async def test_a_client_whose_model_is_lost_is_a_newcomer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, 4, "none", run_dir=tmp_path) as surveys:
        surveys.answers["alone"] = surveys.outcome
        profile = surveys.stage.profile("updates")
        try:
            assert (await profile.gather(1)).newcomers == ()
            assert (await profile.gather(2)).newcomers == ()
            surveys.stage.progress.afresh.add(1)
            assert (await profile.gather(3)).newcomers == (1,)
            assert [task.clients for task in surveys.of("alone")] == [(1,)]
            surveys.stage.progress.afresh.clear()
            assert (await profile.gather(4)).newcomers == ()
        finally:
            profile.close()


@asynccontextmanager
async def one_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Surveys, UpdateProfile, Evidence]]:
    """Client 7 comes before round 2, and its start does not; with the evidence of that round."""
    async with surveyed(monkeypatch, 2, "none", run_dir=tmp_path) as surveys:
        profile = surveys.stage.profile("updates")
        try:
            await profile.gather(1)
            for client, value in ((0, 2.0), (1, 4.0)):
                surveys.stage.context.models.put([client_slot(client)], f"of {client}", model(value))
            await surveys.join("n1", c7=40)
            surveys.answers["alone"] = lambda task: surveys.outcome(task, result=GONE)
            profile.begin_gathering()
            yield surveys, profile, await profile.gather(2)
        finally:
            profile.close()


async def test_a_newcomer_without_a_start_is_left_out_and_is_one_in_the_next_round_also_if_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_late(tmp_path, monkeypatch) as (surveys, profile, evidence):
        stage = surveys.stage
        assert (evidence.clients, evidence.newcomers) == ((0, 1), ())
        assert profile.silent[7] == GONE
        (waits,) = stage.journal.of_kind("newcomers_wait")
        assert (waits["round"], waits["clients"], waits["reason"]) == (2, [7], str(GONE))
        assert not stage.journal.of_kind("newcomers")
        resumed = stage.profile("updates")
        try:
            resumed.restore(json.loads(json.dumps(profile.save())))
            surveys.answers["alone"] = lambda task: surveys.outcome(task, result=surveys.made(model(3.0)))
            evidence = await resumed.gather(3)
        finally:
            resumed.close()
        assert (evidence.clients, evidence.newcomers) == ((0, 1, 7), (7,))
        assert await stage.value(stage.of(7)) == 3.0
        assert [(event["round"], event["clients"]) for event in stage.journal.of_kind("newcomers")] == [(3, [7])]


async def test_a_client_that_got_a_model_while_it_had_to_wait_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_late(tmp_path, monkeypatch) as (surveys, profile, _):
        surveys.stage.context.models.put([client_slot(7)], "of its group", model(9.0))
        evidence = await profile.gather(3)
        assert (evidence.clients, evidence.newcomers) == ((0, 1, 7), ())
        assert len(surveys.of("alone")) == 1


async def test_a_model_without_layers_to_choose_from_is_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Membership, "tensors", (TensorSpec("embedding", "float32", (2,)),))
    async with surveyed(monkeypatch, 2, "none", {"similarity": "layer"}, run_dir=tmp_path) as surveys:
        with pytest.raises(TaskError, match=r"no trainable dense .* layer; give --profile-option similarity=exact"):
            surveys.stage.profile("updates")


async def test_updates_without_the_head_of_a_model_of_which_only_that_is_trained_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = (TensorSpec("body", "float32", (2,), False), TensorSpec("head", "float32", (2,), head=True))
    monkeypatch.setattr(Membership, "tensors", tensors)
    async with surveyed(monkeypatch, 2, "none", {"similarity_of": "shared"}, run_dir=tmp_path) as surveys:
        with pytest.raises(ConfigError, match=r"outside its head is trained.*similarity_of=all"):
            surveys.stage.profile("updates")
    async with surveyed(monkeypatch, 2, "none", {"similarity_of": "all"}, run_dir=tmp_path) as surveys:
        surveys.stage.profile("updates").close()
