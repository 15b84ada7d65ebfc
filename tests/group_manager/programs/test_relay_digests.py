"""What arrives is compared with what its maker reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.messages import Failure, FailureCode, RelayMode, Trained
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, relayed, scene
from tests.support.scripted import ScriptedNode
from top_server.groups.watch import OFFENCES

FOUR_NODES = hosted(n0=[0], n1=[1], n2=[2], n3=[3])


def codes(play: Scene) -> dict[int, FailureCode | None]:
    return {client: failure.code if failure else None for client, failure in play.skipped.items()}


@pytest.mark.parametrize("once", [True, False])
async def test_a_reader_that_got_another_model_than_was_reported_gets_it_by_way_of_the_manager(once: bool) -> None:
    async with scene(Faults().serve_another("n1", once=once)) as play:
        outcome = await play.run(hosted(n0=[0], n1=[1], n2=[2, 3], n4=[4]))
        assert play.skipped == {}
        assert 2 in play.rerouted
        assert await play.result(outcome) == relayed([0, 1, 2, 3, 4])


async def test_without_another_way_the_first_reader_that_got_another_model_is_passed_over() -> None:
    async with scene(Faults().serve_another("n1", once=True)) as play:
        outcome = await play.run(FOUR_NODES, relay=RelayMode.DIRECT)
        assert codes(play) == {2: FailureCode.DISPUTED}
        assert await play.result(outcome) == relayed([0, 1, 3])


async def test_without_another_way_who_gives_two_nodes_another_model_is_passed_over_itself() -> None:
    async with scene(Faults().serve_another("n1")) as play:
        outcome = await play.run(hosted(n0=[0], n1=[1], n2=[2], n3=[3], n4=[4]), relay=RelayMode.DIRECT)
        assert codes(play) == {2: FailureCode.DISPUTED, 1: FailureCode.DISPUTED}
        assert await play.result(outcome) == relayed([0, 3, 4])


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.DIRECT, RelayMode.MANAGER])
@pytest.mark.parametrize("lying", [[2], [2, 3], [2, 3, 4, 5]])
async def test_a_node_that_says_that_other_models_came_costs_nobody_else_the_round(
    lying: list[int], relay: RelayMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its clients say so."""
    honest = ScriptedNode._carry_out

    async def lie(self: ScriptedNode, *order: Any) -> tuple[Any, Any]:
        result, made = await honest(self, *order)
        if self.name == "liar" and isinstance(result, Trained) and result.start is not None:
            result = dataclasses.replace(result, start=dataclasses.replace(result.start, digest=bytes(32)))
        return result, made

    monkeypatch.setattr(ScriptedNode, "_carry_out", lie)
    async with scene() as play:
        outcome = await play.run(hosted(n0=[0], n1=[1], liar=lying, n4=[6]), relay=relay)
        assert play.skipped.keys() <= set(lying)
        assert 2 in play.skipped
        assert await play.result(outcome) == relayed([0, 1, *(c for c in lying if c not in play.skipped), 6])


def test_a_dispute_does_not_count_as_a_rejected_model() -> None:
    assert FailureCode.DISPUTED not in OFFENCES
    assert FailureCode.WRONG_DIGEST in OFFENCES


async def test_a_last_model_that_is_not_what_was_reported_is_left_out() -> None:
    async with scene(Faults().collect_another("n3")) as play:
        outcome = await play.run(FOUR_NODES)
        assert codes(play) == {3: FailureCode.WRONG_DIGEST}
        assert await play.result(outcome) == relayed([0, 1, 2])


async def test_nobody_reads_a_model_from_the_manager_before_it_was_compared() -> None:
    async with scene(Faults().collect_another("n1")) as play:
        outcome = await play.run(FOUR_NODES, relay=RelayMode.MANAGER)
        assert codes(play) == {1: FailureCode.WRONG_DIGEST}
        assert not isinstance(outcome, Failure)
        assert await play.result(outcome) == relayed([0, 2, 3])
