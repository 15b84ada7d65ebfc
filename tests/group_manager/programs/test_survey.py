"""Surveys: one question to every member."""

from __future__ import annotations

import pytest
from support.faults import Faults
from support.scene import START, hosted, scene

from fedgsp.messages import Described, Evaluated, Failure, FailureCode, GroupResult, MemberDone, ModelRef, RelayMode
from fedgsp.seeds import derive

TWO_NODES = hosted(n1=[0, 2], n2=[1])


async def test_describing_collects_every_histogram_and_makes_no_model() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, "describe")
        assert outcome == GroupResult(ModelRef(""), 0, 0, 0)
        results = {e.kind.client: e.kind.result for e in play.events if isinstance(e.kind, MemberDone)}
        assert results == {client: Described((client, 1)) for client in range(3)}
        play.assert_released()


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.MANAGER])
async def test_evaluating_asks_every_member_about_the_start_model(relay: RelayMode) -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, "evaluate", relay=relay)
        results = [e.kind.result for e in play.events if isinstance(e.kind, MemberDone)]
        assert [(r.correct, r.samples, r.loss_sum) for r in results if isinstance(r, Evaluated)] == [
            (0, 10, START),
            (1, 10, START),
            (2, 10, START),
        ]
        assert isinstance(outcome, GroupResult)
        assert outcome.bytes_relayed == 24
        play.assert_released()


@pytest.mark.parametrize("program", ["describe", "evaluate"])
@pytest.mark.parametrize(
    ("faults", "skipped"),
    [
        (lambda: Faults().fail(1), {1: FailureCode.TASK_RAISED}),
        (lambda: Faults().stall(2), {2: FailureCode.STALLED}),
        (lambda: Faults().lose_node("n1", before=0), {0: FailureCode.NODE_LOST, 2: FailureCode.NODE_LOST}),
    ],
)
async def test_a_member_without_an_answer_is_skipped_and_the_others_are_heard(
    program: str, faults: type[Faults], skipped: dict[int, FailureCode]
) -> None:
    async with scene(faults()) as play:
        outcome = await play.run(TWO_NODES, program)
        assert isinstance(outcome, GroupResult)
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == skipped
        assert sorted(play.done) == [client for client in range(3) if client not in skipped]


async def test_fresh_weights_are_made_from_the_runs_seed_by_the_first_member() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, "initialise", start=None)
        assert await play.result(outcome) == float(derive(0, "initial-weights"))
        assert play.done == [0]


async def test_fresh_weights_are_made_by_the_first_member_that_can() -> None:
    async with scene(Faults().fail(0).lose_node("n2", before=1)) as play:
        outcome = await play.run(TWO_NODES, "initialise", start=None)
        assert await play.result(outcome) == float(derive(0, "initial-weights"))
        assert set(play.skipped) == {0, 1}
        assert play.done == [2]


async def test_a_stalled_member_is_called_off_in_the_end() -> None:
    async with scene(Faults().stall(0)) as play:
        outcome = await play.run(TWO_NODES, "initialise", start=None)
        assert isinstance(outcome, GroupResult)
        assert play.done == [1]
        assert play.skipped[0] is not None
        assert play.skipped[0].code is FailureCode.STALLED


async def test_if_nobody_can_make_weights_the_last_reason_is_given() -> None:
    async with scene(Faults().fail(0).fail(1).lose_node_when_collected("n1")) as play:
        outcome = await play.run(TWO_NODES, "initialise", start=None)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NODE_LOST
        assert set(play.skipped) == {0, 1, 2}
