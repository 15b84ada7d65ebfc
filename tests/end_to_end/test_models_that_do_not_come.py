"""Clients that train alone hand over their models (FLSC): a model that does not come here is made again, or told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, ModelRef
from tests.end_to_end.test_groups_same_bits import configured, expected, hosts
from tests.support.cluster import Finished, play
from tests.support.managers_here import managers_here
from tests.support.reference_groups import assert_equals
from top_server.groups.run import MOST_MANAGERS
from top_server.managers.client import BrokenOff, ManagerClient

BROKEN_OFF = BrokenOff(Failure(FailureCode.UNREACHABLE, "the transfer broke off"), lost=False)
NO_ROOM = Failure(FailureCode.NO_ROOM, "there is no disk for its bytes")
WRONG_DIGEST = Failure(FailureCode.WRONG_DIGEST, "it is not the model that its maker reported")


async def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], Failure | BrokenOff | None]
) -> Finished:
    """Seven clients, and three rounds; `fails` says of the id of a model why it does not come."""
    managers_here(monkeypatch)
    fetch = ManagerClient._fetch

    async def failing(self: ManagerClient, ref: ModelRef, *arguments: Any) -> Any:
        return fails(ref.id) or await fetch(self, ref, *arguments)

    monkeypatch.setattr(ManagerClient, "_fetch", failing)
    return await play(configured(tmp_path, "flsc"), hosts("mixed up"))


def of_client_three(model_id: str) -> bool:
    """Whether client 3 has trained this model in round 2."""
    return "/2/" in model_id and "/alone/3." in model_id


async def test_a_model_that_its_manager_does_not_give_is_made_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fails(model_id: str) -> BrokenOff | None:
        if not of_client_three(model_id) or len(tried) == 2:
            return None
        tried.append(model_id)
        return BROKEN_OFF

    run = await played(tmp_path, monkeypatch, fails)
    assert len(tried) == 2
    assert {event["round"] for event in run.of_kind("group_resumed")} == {2}
    assert_equals(run, expected("flsc"))
    assert not run.of_kind("client_skipped")


@pytest.mark.parametrize("why", [NO_ROOM, pytest.param(WRONG_DIGEST, marks=pytest.mark.slow), BROKEN_OFF])
async def test_a_client_whose_model_cannot_be_had_is_skipped_and_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: Failure | BrokenOff
) -> None:
    run = await played(tmp_path, monkeypatch, lambda model_id: why if of_client_three(model_id) else None)
    again = MOST_MANAGERS - 1 if isinstance(why, BrokenOff) else 0
    assert len(run.of_kind("group_resumed")) == 7 * again
    (skipped,) = run.of_kind("client_skipped")
    assert (skipped["round"], skipped["client"], skipped["code"]) == (2, 3, "UNREACHABLE")
    assert "did not come to the top server" in skipped["reason"]
    (missed,) = run.of_kind("clients_missed")
    assert (missed["clients"], missed["first"], missed["last"], missed["code"]) == ([3], 2, 2, "UNREACHABLE")
    assert [row["clients_trained"] for row in run.rows] == [7, 6, 7]
    assert [event["group"] for event in run.of_kind("group_failed")] == [skipped["group"]]
