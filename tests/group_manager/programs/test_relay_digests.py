"""What arrives is compared with what its maker reported."""

from __future__ import annotations

from fedgsp.messages import Failure, FailureCode, RelayMode
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, relayed, scene
from top_server.groups.watch import OFFENCES

FOUR_NODES = hosted(n0=[0], n1=[1], n2=[2], n3=[3])


def codes(play: Scene) -> dict[int, FailureCode | None]:
    return {client: failure.code if failure else None for client, failure in play.skipped.items()}


async def test_a_reader_that_got_another_model_than_was_reported_is_passed_over() -> None:
    async with scene(Faults().serve_another("n1", once=True)) as play:
        outcome = await play.run(FOUR_NODES)
        assert codes(play) == {2: FailureCode.DISPUTED}
        assert await play.result(outcome) == relayed([0, 1, 3])


async def test_who_gives_two_readers_another_model_than_it_reports_is_passed_over_itself() -> None:
    async with scene(Faults().serve_another("n1")) as play:
        outcome = await play.run(hosted(n0=[0], n1=[1], n2=[2], n3=[3], n4=[4]))
        assert codes(play) == {2: FailureCode.DISPUTED, 1: FailureCode.DISPUTED}
        assert await play.result(outcome) == relayed([0, 3, 4])


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
