"""A relay goes on from the last good model: after a holder was away, after a refusal, and under another manager."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fedgsp.messages import Failure, FailureCode, FinishedHop, GroupResult, RelayMode, Rerouted, TensorSpec
from group_manager.chain import MOST_LOSSES, client_order
from group_manager.programs.relay import HOLDER_AWAY
from tests.support.faults import Faults
from tests.support.scene import Rule, Scene, hosted, relayed, scene, step
from tests.support.scripted import let_others_run, model

TWO_NODES = hosted(n1=[0, 2, 4], n2=[1, 3, 5])

# --- a holder that was away for a moment


@pytest.mark.parametrize("code", HOLDER_AWAY)
async def test_a_reader_is_asked_again_if_the_holder_of_its_start_was_away_meanwhile(
    code: FailureCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(Faults().fail(2, code)) as play:
        # n2 loses its connection once it holds the model of 1, and is back before 2 says that it got none.
        monkeypatch.setattr(play.members, "breaks", lambda node: int(node == "n2" and 1 in play.trained))
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))
        assert play.skipped == {}
        told = Rerouted(2, "node n2 was away for a moment: it is asked again")
        assert [event.kind for event in play.events if isinstance(event.kind, Rerouted)] == [told]


async def test_a_holder_that_is_away_again_and_again_is_skipped_and_not_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = Faults()
    for _ in range(MOST_LOSSES):
        faults.fail(2, FailureCode.UNREACHABLE)
    async with scene(faults) as play:
        # n1 loses its connection each time that 2 asks it for the model of 1.
        breaks = lambda node: sum(fault.used for fault in faults._all) if node == "n1" else 0  # noqa: E731
        monkeypatch.setattr(play.members, "breaks", breaks)
        outcome = await play.run(hosted(n0=[0], n1=[1], n2=[2], n3=[3]), relay=RelayMode.DIRECT)
        assert await play.result(outcome) == relayed([0, 2, 3])
        assert play.skipped == {1: Failure(FailureCode.UNREACHABLE, "node n1 was away for a moment, again and again")}


async def test_a_reader_that_gets_no_model_though_nobody_was_away_is_skipped() -> None:
    async with scene(Faults().fail(2, FailureCode.NO_SUCH_MODEL).fail(2, FailureCode.NO_SUCH_MODEL)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed([0, 1, 3, 4, 5])
        assert 2 in play.rerouted  # it got its start a second time, by way of the manager
        assert play.skipped[2] is not None
        assert play.skipped[2].code is FailureCode.DISPUTED


# --- a model that is refused


async def test_a_model_that_cannot_be_trained_on_costs_its_maker_the_round_and_nobody_else() -> None:
    rule = lambda client, w: float("nan") if client == 2 else step(client, w)  # noqa: E731
    async with scene(rule=rule) as play:
        outcome = await play.run(TWO_NODES, relay=RelayMode.MANAGER)
        assert await play.result(outcome) == relayed([0, 1, 3, 4, 5])
        (named,) = play.skipped
        assert named == 2
        assert 3 in play.rerouted


async def test_a_reader_that_only_says_so_is_passed_over_itself() -> None:
    async with scene(Faults().fail(3, FailureCode.WRONG_DIGEST).fail(3, FailureCode.WRONG_DIGEST)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed([0, 1, 2, 4, 5])
        assert set(play.skipped) == {3}


async def test_a_last_model_of_other_tensors_is_left_out() -> None:
    wanted = (TensorSpec("other", "float64", (1,)),)
    async with scene() as play:
        outcome = await play.run(TWO_NODES[:2], tensors=wanted)
        assert isinstance(outcome, Failure)
        assert {failure.code for failure in play.skipped.values() if failure} == {FailureCode.WRONG_SHAPES}


async def test_a_client_with_a_much_longer_update_is_skipped() -> None:
    rule = lambda client, w: w + (100 if client == 4 else 1 + client / 10)  # noqa: E731
    async with scene(rule=rule) as play:
        outcome = await play.run(TWO_NODES, most_update_ratio=5.0)
        assert await play.result(outcome) == relayed([0, 1, 2, 3, 5], rule)
        (failure,) = play.skipped.values()
        assert failure is not None
        assert failure.code is FailureCode.LONG_UPDATE


@pytest.mark.parametrize("far", [0, 1, 2])
async def test_the_first_hops_are_judged_as_soon_as_there_are_three(far: int) -> None:
    rule = lambda client, w: w + (100 if client == far else 1 + client / 10)  # noqa: E731
    async with scene(rule=rule) as play:
        outcome = await play.run(TWO_NODES, most_update_ratio=5.0)
        assert await play.result(outcome) == relayed([client for client in range(6) if client != far], rule)
        assert {client: why and why.code for client, why in play.skipped.items()} == {far: FailureCode.LONG_UPDATE}
        if far < 2:  # who had gone on from it trains again
            assert play.trained.count(far + 1) == 2
            assert far + 1 in play.rerouted
        play.assert_released(here=1)


async def test_a_first_hop_can_be_refused_after_another_member_failed() -> None:
    rule = lambda client, w: w + (100 if client == 0 else 1 + client / 10)  # noqa: E731
    async with scene(Faults().fail(1, FailureCode.TASK_RAISED), rule=rule) as play:
        outcome = await play.run(TWO_NODES, most_update_ratio=5.0)
        assert await play.result(outcome) == relayed([2, 3, 4, 5], rule)
        assert set(play.skipped) == {0, 1}


async def test_two_hops_cannot_be_judged() -> None:
    rule = lambda client, w: w + (100 if client == 0 else 1)  # noqa: E731
    async with scene(rule=rule) as play:
        outcome = await play.run(TWO_NODES[:2], most_update_ratio=5.0)
        assert await play.result(outcome) == relayed([0, 1], rule)
        assert not play.skipped


# --- what recovery may need


async def test_while_a_node_trains_from_a_model_that_it_fetched_no_older_one_is_kept() -> None:
    held: dict[int, list[str]] = {}
    async with scene(rule=lambda client, w: look(client) + step(client, w)) as play:

        def look(client: int) -> float:
            held[client] = [model_id for node in play.nodes.values() for model_id in node.store.ids("run/")]
            return 0.0

        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))
        assert held == {0: [], **{client: [f"run/1/0/relay/{client - 1}.0"] for client in range(1, 6)}}


async def test_a_chain_that_loses_the_last_model_on_both_nodes_begins_again() -> None:
    """The models before it were let go when the second node had fetched it."""
    async with scene(Faults().hold_for_good(2)) as play:
        running = asyncio.create_task(play.run(hosted(n1=[0, 3], n2=[1], n3=[2])))
        await play.told[1].wait()
        await let_others_run()
        assert not play.nodes["n1"].store.ids("run/")
        await play.nodes["n2"].leave()
        await play.nodes["n3"].leave()
        assert await play.result(await running) == relayed([0, 3])
        assert set(play.skipped) == {1, 2}
        assert play.trained == [0, 1, 0, 3]
        assert 0 in play.rerouted


async def test_a_node_that_fetched_the_last_model_goes_on_when_its_maker_is_lost() -> None:
    async with scene(Faults().hold(2, until=1)) as play:
        running = asyncio.create_task(play.run(hosted(n1=[0, 3], n2=[1], n3=[2])))
        await play.told[1].wait()
        await play.nodes["n2"].leave()
        assert await play.result(await running) == relayed(range(4))
        assert not play.skipped


# --- another manager takes over


async def finished(play: Scene, clients: Sequence[int], rule: Rule = step) -> tuple[FinishedHop, ...]:
    """Hops under a manager that is gone; each node still has the result of its last."""
    hops = []
    for position, client in enumerate(clients):
        member = TWO_NODES[client]
        weights = model(relayed(clients[: position + 1], rule))
        model_id = f"run/1/0/relay/{position}.0"
        if position >= len(clients) - 2:
            play.nodes[member.node].store.put(model_id, weights)
        length = abs(relayed(clients[: position + 1], rule) - relayed(clients[:position], rule))
        hops.append(FinishedHop(member, weights.ref(model_id), length))
    return tuple(hops)


async def test_a_chain_goes_on_from_the_last_finished_hop() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        outcome = await play.run(TWO_NODES, attempt=1, finished=await finished(play, [0, 1, 2]))
        assert await play.result(outcome) == relayed(range(6))
        assert play.trained == [3, 4, 5]
        assert isinstance(outcome, GroupResult)
        assert outcome.samples == sum(range(1, 7))


@pytest.mark.parametrize("far", [0, 1])
async def test_hops_that_the_manager_before_could_not_judge_yet_are_judged(far: int) -> None:
    rule = lambda client, w: w + (100 if client == far else 1 + client / 10)  # noqa: E731
    async with scene(rule=rule) as play:
        await play.attach(TWO_NODES)
        hops = await finished(play, [0, 1], rule)
        outcome = await play.run(TWO_NODES, attempt=1, finished=hops, most_update_ratio=5.0)
        assert await play.result(outcome) == relayed([client for client in range(6) if client != far], rule)
        assert {client: why and why.code for client, why in play.skipped.items()} == {far: FailureCode.LONG_UPDATE}
        assert play.trained == ([2, 1, 2, 3, 4, 5] if far == 0 else [2, 2, 3, 4, 5])


async def test_what_the_nodes_hold_of_other_attempts_is_forgotten() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        play.nodes["n2"].store.put("run/1/0/relay/3.0", model(7))  # made, but never told
        play.nodes["n2"].store.put("run/1/0/alone/3.0", model(7))  # of another program
        outcome = await play.run(TWO_NODES, attempt=1, finished=await finished(play, [0, 1, 2]))
        assert isinstance(outcome, GroupResult)
        assert play.nodes["n2"].store.ids("run/") == ["run/1/0/alone/3.0"]


async def test_hops_whose_results_are_lost_are_made_again_in_their_turn() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        hops = await finished(play, [0, 1, 2, 3])
        play.nodes["n2"].store.clear()
        outcome = await play.run(TWO_NODES, attempt=1, finished=hops)
        assert await play.result(outcome) == relayed(range(6))
        assert play.trained == [3, 4, 5]
        play.assert_released(here=1)


async def test_a_chain_of_which_nothing_is_left_begins_anew() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        hops = await finished(play, [0, 1, 2])
        for node in play.nodes.values():
            node.store.clear()
        outcome = await play.run(TWO_NODES, attempt=2, finished=hops)
        assert await play.result(outcome) == relayed(range(6))
        assert play.trained == list(range(6))


async def test_finished_hops_of_a_node_that_left_count_while_a_later_model_is_there() -> None:
    async with scene() as play:
        await play.attach(TWO_NODES)
        hops = await finished(play, [0, 1, 2])
        await play.nodes["n2"].leave()
        there = [member for member in TWO_NODES if member.node == "n1"]
        outcome = await play.run(there, attempt=1, finished=hops, planned=tuple(range(6)))
        assert await play.result(outcome) == relayed([0, 1, 2, 4])


async def test_who_is_missing_does_not_change_the_order_of_the_others() -> None:
    order = client_order(range(6), True, 0, 1, 0)
    async with scene() as play:
        await play.run([TWO_NODES[client] for client in (0, 2, 5)], shuffle=True, planned=tuple(range(6)))
        assert play.trained == [client for client in order if client in (0, 2, 5)]
