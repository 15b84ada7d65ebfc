"""What cannot be extended is refused before a node is waited for."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from fedgsp.errors import ConfigError, RunError
from fedgsp.messages import Evaluated, Failure, FailureCode, MemberDone, MemberSkipped, ModelRef
from fedgsp.settings.run import RunConfig
from tests.support.surveyed import Surveys, surveyed
from top_server.choosing import choose
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.models import Held
from top_server.resume import extend


def refused(done: int, rounds: int, **settings: Any) -> ConfigError:
    config = RunConfig(**{"rounds": done, **settings})
    with pytest.raises(ConfigError) as caught:
        extend.check(config, choose(config), done, rounds)
    return caught.value


@pytest.mark.parametrize("rounds", [3, 10])
def test_the_number_of_rounds_must_grow(rounds: int) -> None:
    assert refused(10, rounds).what == f"--extend: --rounds is {rounds}, and the run has 10 rounds"


def test_a_schedule_is_followed_up_to_its_horizon() -> None:
    given: dict[str, Any] = {"schedule": "cosine", "schedule_option": {"horizon": "20"}}
    config = RunConfig(rounds=10, **given)
    extend.check(config, choose(config), 10, 20)
    error = refused(10, 21, **given)
    assert "--schedule cosine of the run ends at its horizon, round 20" in error.what
    assert error.remedy == "give --rounds 20, or start a run with --schedule-option horizon=21"
    assert refused(20, 21, **given).remedy == "start a run with --schedule-option horizon=21"


@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_a_schedule_that_has_no_end_goes_on(schedule: str) -> None:
    config = RunConfig(rounds=10, schedule=schedule)
    extend.check(config, choose(config), 10, 1000)


def test_a_learning_rate_that_falls_to_nothing_ends_it() -> None:
    assert "the learning rate is 0 before round 99999" in refused(10, 99999, learning_rate_decay=0.5).what


@pytest.mark.parametrize("scheme", ["maxfl", "maxfl-hcct", "kmeans"])
def test_prior_models_must_not_depend_on_the_number_of_rounds(scheme: str) -> None:
    error = refused(10, 20, scheme=scheme)
    assert "as many epochs as the run had in all" in error.what
    assert error.remedy == "start a run with --profile-option prior_epochs=..."
    config = RunConfig(rounds=10, scheme=scheme, profile_option={"prior_epochs": "4"})
    extend.check(config, choose(config), 10, 20)


def test_training_alone_was_as_long_as_the_run(tmp_path: Any) -> None:
    assert "10 rounds of training alone" in refused(10, 20, scheme="hcct", local_run=tmp_path / "alone").what


FULL = Failure(FailureCode.UNSPECIFIED, "the group manager is full")
NO_MODEL = Failure(FailureCode.NO_SUCH_MODEL, "it is gone")
SILENT = "did not say whether their nodes have what they kept for them in the run"


async def kept(surveys: Surveys, skipped: dict[int, Failure], fails: Failure | None = None) -> None:
    """Asks three clients that keep models on their nodes; the others answer, until the question fails."""

    def evaluate(task: GroupTask) -> GroupOutcome:
        answering = [client for client in task.clients if client not in skipped]
        done = [MemberDone(client, 0, Evaluated(3, 5, 2.0, judged=5)) for client in answering]
        told = tuple(MemberSkipped(client, why) for client, why in skipped.items() if client in task.clients)
        outcome = surveys.outcome(task, done=tuple(done), skipped=told)
        return outcome if fails is None else dataclasses.replace(outcome, result=fails, done=outcome.done[:1])

    surveys.answers["evaluate"] = evaluate
    play = surveys.stage
    await extend.check_kept(play.context, play.progress, play.merging, 2)


@pytest.mark.parametrize(
    ("skipped", "fails", "error"),
    [
        ({}, None, ""),
        ({1: NO_MODEL}, None, "nodes of clients 1 do not have what they kept"),
        ({1: NO_MODEL}, FULL, "nodes of clients 1 do not have what they kept"),
        ({1: Failure(FailureCode.STALLED, "slow")}, None, f"clients 1 {SILENT}: stalled: slow"),
        ({}, FULL, f"clients 1, 2 {SILENT}: {FULL}"),
        ({1: Failure(FailureCode.POLICY, "no evaluate")}, None, ""),
    ],
)
async def test_what_nodes_keep_is_there_or_the_command_says_who_lacks_it_or_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, skipped: dict[int, Failure], fails: Failure | None, error: str
) -> None:
    async with surveyed(monkeypatch, 3, merge="none") as surveys:
        await surveys.stage.take(1, surveys.stage.alone({client: ModelRef(f"of {client}") for client in range(3)}))
        with pytest.raises(RunError, match=error) if error else contextlib.nullcontext():
            await kept(surveys, skipped, fails)


async def test_clients_that_are_away_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a longer run they would be away, too."""
    async with surveyed(monkeypatch, 3, merge="clusters") as surveys:
        own = {client: Held(ModelRef(f"own {client}"), client) for client in (1, 7)}
        surveys.stage.progress.local_models.update(own)
        await kept(surveys, {7: Failure(FailureCode.NODE_LOST, "its node left")})
        assert [task.clients for task in surveys.of("evaluate")] == [(1,)]
