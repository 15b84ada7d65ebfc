"""Fresh weights that two nodes have made alike."""

from __future__ import annotations

import pytest

from fedgsp.messages import Cancel, Failure, FailureCode, GroupResult, Initialise, Member, MemberDone, Trained
from fedgsp.seeds import derive
from group_manager.programs import initialise
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, scene
from tests.support.scripted import TENSORS

FIVE = hosted(n0=[0], n1=[1], n2=[2], n3=[3], n4=[4])
FRESH = float(derive(0, "initial-weights"))


def asked(play: Scene) -> list[Initialise]:
    orders = (order for node in play.nodes.values() for order in node.orders)
    return [order.work for order in orders if isinstance(order.work, Initialise)]


def digests(play: Scene) -> list[bytes]:
    results = (event.kind.result for event in play.events if isinstance(event.kind, MemberDone))
    return [result.ref.digest for result in results if isinstance(result, Trained) and result.ref is not None]


async def test_two_nodes_make_them_from_the_seed_of_the_run() -> None:
    async with scene() as play:
        outcome = await play.run(FIVE, "initialise", start=None)
        assert await play.result(outcome) == FRESH
        assert sorted(play.done) == [0, 1]
        assert len(asked(play)) == 2  # in a run without faults no more are needed
        play.assert_released(here=1)  # the result


async def test_a_node_is_not_asked_twice() -> None:
    async with scene() as play:
        outcome = await play.run(hosted(n1=[0, 1], n2=[2]), "initialise", start=None)
        assert await play.result(outcome) == FRESH
        assert sorted(play.done) == [0, 2]


async def test_one_node_alone_makes_them() -> None:
    async with scene() as play:
        outcome = await play.run(hosted(n1=[0, 1, 2]), "initialise", start=None)
        assert await play.result(outcome) == FRESH
        assert play.done == [0]


@pytest.mark.parametrize("bad", [[0], [1], [0, 1], [0, 2], [0, 1, 2]])
async def test_nodes_that_make_others_do_not_choose_them(bad: list[int]) -> None:
    faults = Faults()
    for client in bad:
        faults.make_another(client, "values")
    async with scene(faults) as play:
        outcome = await play.run(FIVE, "initialise", start=None)
        assert await play.result(outcome) == FRESH
        assert sorted(play.done) == list(range(len(bad) + 2))
        assert not play.skipped
        assert len(set(digests(play))) == len(bad) + 1  # the top server learns of it
        play.assert_released(here=1)


async def test_if_no_two_nodes_make_the_same_those_of_the_first_member_count() -> None:
    async with scene(Faults().make_another(0, "values").make_another(1, "values")) as play:
        outcome = await play.run(FIVE[:3], "initialise", start=None)
        assert await play.result(outcome) == 0.5
        assert sorted(play.done) == [0, 1, 2]


async def test_others_make_them_if_members_cannot() -> None:
    async with scene(Faults().fail(0).lose_node("n1", before=1)) as play:
        outcome = await play.run(FIVE, "initialise", start=None)
        assert await play.result(outcome) == FRESH
        assert set(play.skipped) == {0, 1}
        assert sorted(play.done) == [2, 3]


async def test_weights_with_other_tensors_than_those_of_the_run_are_not_taken() -> None:
    async with scene(Faults().make_another(0)) as play:
        outcome = await play.run(FIVE[:2], "initialise", start=None, tensors=TENSORS)
        assert await play.result(outcome) == FRESH
        assert sorted(play.done) == [0, 1]
        why = play.skipped[0]
        assert why is not None
        assert why.code is FailureCode.WRONG_SHAPES
        assert why.detail.startswith("of node n0: model 'run/1/initial-0.0.0' has tensor 'w' float64[4] where")
    async with scene(Faults().make_another(2)) as play:
        outcome = await play.run([Member(2, "n2", "", 3)], "initialise", start=None, tensors=TENSORS, group=1)
        assert isinstance(outcome, Failure)
        assert outcome.detail.startswith("of node n2: model ")


async def test_if_those_of_two_nodes_do_not_come_those_of_another_node_do_not_count() -> None:
    faults = Faults().make_another(0, "values").lose_node_when_collected("n1").lose_node_when_collected("n2")
    async with scene(faults) as play:
        outcome = await play.run(FIVE[:3], "initialise", start=None)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NODE_LOST


async def test_a_stalled_member_is_called_off_in_the_end() -> None:
    async with scene(Faults().stall(0)) as play:
        outcome = await play.run(FIVE, "initialise", start=None)
        assert isinstance(outcome, GroupResult)
        assert sorted(play.done) == [1, 2]
        assert play.skipped[0] is not None
        assert play.skipped[0].code is FailureCode.STALLED


async def test_a_member_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialise, "PATIENCE_S", 0.01)
    async with scene(Faults().hold_for_good(0)) as play:
        outcome = await play.run(FIVE, "initialise", start=None)
        assert await play.result(outcome) == FRESH
        assert not play.skipped
        assert 0 not in play.done
        assert any(isinstance(order.work, Cancel) for order in play.nodes["n0"].orders)


async def test_if_nobody_can_make_them_the_last_reason_is_given() -> None:
    async with scene(Faults().fail(0).fail(1).lose_node_when_collected("n2")) as play:
        outcome = await play.run(FIVE[:3], "initialise", start=None)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NODE_LOST
        assert set(play.skipped) == {0, 1, 2}


async def test_every_group_number_gives_others() -> None:
    for group, seed in [(0, derive(0, "initial-weights")), (2, derive(0, "initial-weights", 2))]:
        async with scene() as play:
            await play.run(FIVE, "initialise", start=None, group=group)
            assert [work.seed for work in asked(play)] == [seed, seed]


async def test_a_node_that_was_asked_before_cannot_upload_under_a_name_of_a_later_question() -> None:
    names = []
    for attempt in (0, 4):
        async with scene() as play:
            await play.run(FIVE, "initialise", start=None, attempt=attempt)
            names.append({work.produces for work in asked(play)})
    assert not names[0] & names[1]
