"""The relay: the chain drives itself, and goes on from the last good model whatever happens to its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupResult,
    MemberDone,
    RelayMode,
    SourceKind,
    Trained,
)
from group_manager.chain import client_order
from tests.support.faults import Faults
from tests.support.scene import hosted, relayed, scene
from tests.support.scripted import STALL_TIMEOUT_S

TWO_NODES = hosted(n1=[0, 2, 4], n2=[1, 3, 5])
ONE_NODE = hosted(n1=range(6))


def kinds_of(play: object, client: int) -> list[SourceKind]:
    return [source.kind for source in play.starts()[client].sources]  # type: ignore[attr-defined]


# --- nothing goes wrong


async def test_the_result_is_that_of_an_independent_loop() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))
        assert play.done == list(range(6))
        assert play.skipped == {}


async def test_the_samples_of_all_hops_are_added_up() -> None:
    async with scene(samples={0: 10, 1: 1}) as play:
        outcome = await play.run(TWO_NODES[:3])
        assert isinstance(outcome, GroupResult)
        assert outcome.samples == 10 + 1 + 3


async def test_the_order_is_drawn_from_the_seed_of_the_run() -> None:
    order = client_order(range(6), True, 0, 1, 0)
    assert order != sorted(order)
    async with scene() as play:
        outcome = await play.run(TWO_NODES, shuffle=True)
        assert play.trained == order
        assert await play.result(outcome) == relayed(order)


async def test_the_whole_chain_is_declared_before_the_first_hop_is_done() -> None:
    async with scene(Faults().hold_for_good(0)) as play:
        running = asyncio.create_task(play.run(TWO_NODES))
        await play.holding.wait()
        assert play.nodes["n1"].trainings() == [(0, 0), (2, 0), (4, 0)]
        assert play.nodes["n2"].trainings() == [(1, 0), (3, 0), (5, 0)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_events_tell_the_position_and_the_result_of_every_hop() -> None:
    async with scene() as play:
        await play.run(TWO_NODES[:2])
        first, second = [event.kind for event in play.events]
        assert isinstance(first, MemberDone)
        assert isinstance(second, MemberDone)
        assert (first.position, second.position) == (0, 1)
        assert isinstance(second.result, Trained)
        assert second.result.samples == 2


@pytest.mark.parametrize(("order", "expected"), [((0, 1), 1.21), ((1, 0), 1.17)])
async def test_the_toy_relay_gives_the_published_values(order: tuple[int, int], expected: float) -> None:
    targets = (0.0, 4.0)
    async with scene(rule=lambda client, w: w - 0.1 * (w - targets[client])) as play:
        members = hosted(n1=[0], n2=[1])
        outcome = await play.run([members[client] for client in order])
        assert await play.result(outcome) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_any_layout_and_any_failing_clients_give_the_loop_without_them(data: st.DataObject) -> None:
    hosts = data.draw(st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=7))
    failing = data.draw(st.sets(st.sampled_from(range(len(hosts)))))
    layout = {node: [c for c, host in enumerate(hosts) if host == node] for node in set(hosts)}
    relay = data.draw(st.sampled_from([RelayMode.AUTO, RelayMode.DIRECT]))

    async def check() -> None:
        faults = Faults()
        for client in failing:
            faults.fail(client)
        async with scene(faults) as play:
            outcome = await play.run(hosted(**layout), relay=relay)
            assert set(play.skipped) == failing
            if len(failing) == len(hosts):
                assert isinstance(outcome, Failure)
                play.assert_released()
            else:
                assert await play.result(outcome) == relayed([c for c in range(len(hosts)) if c not in failing])

    asyncio.run(check())


# --- where weights come from


async def test_the_first_hop_starts_from_the_top_server() -> None:
    async with scene() as play:
        await play.run(TWO_NODES)
        assert kinds_of(play, 0) == [SourceKind.TOP_SERVER]
        assert not play.starts()[0].keep


@pytest.mark.parametrize(
    ("relay", "kinds"),
    [
        (RelayMode.AUTO, [SourceKind.NODE, SourceKind.MANAGER]),
        (RelayMode.DIRECT, [SourceKind.NODE]),
        (RelayMode.MANAGER, [SourceKind.MANAGER]),
    ],
)
async def test_every_relay_mode_names_its_sources(relay: RelayMode, kinds: list[SourceKind]) -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, relay=relay)
        assert kinds_of(play, 1) == kinds
        assert await play.result(outcome) == relayed(range(6))


async def test_a_node_without_an_address_is_read_by_way_of_the_manager() -> None:
    members = hosted(n1=[0], n2=[1])
    hidden = [type(member)(member.client, member.node, "", member.samples) for member in members]
    async with scene() as play:
        outcome = await play.run(hidden)
        assert kinds_of(play, 1) == [SourceKind.MANAGER]
        assert await play.result(outcome) == relayed([0, 1])
        assert play.rerouted == []  # it was declared so


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.DIRECT, RelayMode.MANAGER])
async def test_hand_overs_inside_a_node_are_local_and_move_no_bytes(relay: RelayMode) -> None:
    async with scene() as play:
        outcome = await play.run(ONE_NODE, relay=relay)
        assert {kind for client in range(1, 6) for kind in kinds_of(play, client)} == {SourceKind.LOCAL}
        assert isinstance(outcome, GroupResult)
        assert (outcome.bytes_direct, outcome.bytes_relayed) == (0, 16)  # the start down, the result up


async def test_in_manager_mode_the_start_comes_by_way_of_the_manager_and_is_forgotten() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES, relay=RelayMode.MANAGER)
        assert kinds_of(play, 0) == [SourceKind.MANAGER]
        assert await play.result(outcome) == relayed(range(6))  # and nothing else is kept
        assert isinstance(outcome, GroupResult)
        assert outcome.bytes_direct == 0


async def test_direct_bytes_are_counted_apart() -> None:
    async with scene() as play:
        outcome = await play.run(TWO_NODES)
        assert isinstance(outcome, GroupResult)
        assert (outcome.bytes_direct, outcome.bytes_relayed) == (5 * 8, 2 * 8)


async def test_a_node_that_cannot_be_dialled_is_read_by_way_of_the_manager_and_that_is_told() -> None:
    async with scene(Faults().unreachable("n1")) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))
        assert play.rerouted == [1, 3, 5]
        assert play.skipped == {}


async def test_without_the_manager_those_who_cannot_dial_are_skipped() -> None:
    async with scene(Faults().unreachable("n1")) as play:
        outcome = await play.run(hosted(n1=[0, 2], n2=[1]), relay=RelayMode.DIRECT)
        assert await play.result(outcome) == relayed([0, 2])
        assert play.skipped[1] is not None
        assert play.skipped[1].code is FailureCode.UNREACHABLE


# --- models are released


@pytest.mark.parametrize("nodes", [1, 2, 3])
async def test_a_node_keeps_few_models_and_none_in_the_end(nodes: int) -> None:
    many = hosted(**{f"n{i}": range(i, 30, nodes) for i in range(nodes)})
    async with scene() as play:
        outcome = await play.run(many)
        # two that recovery may need, and the one whose release is on its way
        assert max(node.most_held for node in play.nodes.values()) <= 3
        assert await play.result(outcome) == relayed(range(30))


async def test_the_last_model_that_another_node_holds_is_kept_until_the_end() -> None:
    faults = Faults().lose_node_when_collected("n1")
    async with scene(faults) as play:
        # 1 on n2 is the last model elsewhere while n1 trains 2, 3, 4
        outcome = await play.run(hosted(n1=[0, 2, 3, 4], n2=[1]))
        assert await play.result(outcome) == relayed([0, 1])


# --- clients fail


async def test_a_failing_client_is_skipped_and_the_chain_goes_on() -> None:
    async with scene(Faults().fail(2)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed([0, 1, 3, 4, 5])
        assert play.skipped == {2: Failure(FailureCode.TASK_RAISED, "client 2 was told to fail")}


async def test_the_rest_of_the_chain_is_called_off_and_declared_again() -> None:
    async with scene(Faults().fail(2)) as play:
        await play.run(TWO_NODES)
        n1, n2 = play.nodes["n1"], play.nodes["n2"]
        assert n1.trainings() == [(0, 0), (2, 0), (4, 0), (4, 1)]
        assert n2.trainings() == [(1, 0), (3, 0), (5, 0), (3, 1), (5, 1)]
        assert {(3, 0), (5, 0)} <= n2.cancelled()
        assert (4, 0) in n1.cancelled()
        assert not {(0, 0), (1, 0)} & (n1.cancelled() | n2.cancelled())
        # 3 starts from the last good model, which is that of 1 and its neighbour's
        again = [order.work.start for order in n2.orders if order.client == 3][1]  # type: ignore[union-attr]
        assert again is not None
        assert again.model_id == "run/1/0/relay/1.0"
        assert [source.kind for source in again.sources] == [SourceKind.LOCAL]


@pytest.mark.parametrize("client", [0, 5])
async def test_the_first_and_the_last_client_can_fail(client: int) -> None:
    async with scene(Faults().fail(client)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed([c for c in range(6) if c != client])


async def test_if_every_client_fails_the_group_fails_and_says_why() -> None:
    faults = Faults().fail(0).fail(1).fail(2, FailureCode.NOT_FINITE)
    async with scene(faults) as play:
        outcome = await play.run(TWO_NODES[:3])
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NOT_FINITE
        assert "no member trained" in outcome.detail
        assert "client 2 was told to fail" in outcome.detail
        assert set(play.skipped) == {0, 1, 2}
        play.assert_released()


async def test_a_group_without_members_fails() -> None:
    async with scene() as play:
        outcome = await play.run([])
        assert outcome == Failure(
            FailureCode.NODE_LOST, "no member trained; the last reason: no member of the group can take part"
        )


async def test_a_stalled_client_is_skipped_and_called_off() -> None:
    async with scene(Faults().stall(2)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed([0, 1, 3, 4, 5])
        assert play.skipped[2] is not None
        assert play.skipped[2].code is FailureCode.STALLED
        assert (2, 0) in play.nodes["n1"].cancelled()


async def test_a_slow_client_that_makes_progress_is_not_skipped() -> None:
    async with scene(Faults().crawl(2)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))


async def test_a_report_that_comes_again_changes_nothing() -> None:
    async with scene(Faults().report_twice(1)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))
        assert play.skipped == {}


# --- nodes are lost


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.DIRECT, RelayMode.MANAGER])
async def test_a_node_lost_in_training_is_skipped_with_all_its_clients(relay: RelayMode) -> None:
    async with scene(Faults().lose_node("n2", before=1)) as play:
        outcome = await play.run(TWO_NODES, relay=relay)
        assert await play.result(outcome) == relayed([0, 2, 4])
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == dict.fromkeys(
            [1, 3, 5], FailureCode.NODE_LOST
        )


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.DIRECT])
async def test_a_node_lost_with_its_result_sends_the_chain_back_to_the_model_before(relay: RelayMode) -> None:
    async with scene(Faults().lose_node("n2", after=1)) as play:
        outcome = await play.run(TWO_NODES, relay=relay)
        assert await play.result(outcome) == relayed([0, 2, 4])
        assert set(play.skipped) == {1, 3, 5}
        assert play.trained.count(0) == 1  # its model was still there


async def test_live_clients_whose_results_were_lost_train_again() -> None:
    # 1 on n1 was released when 2 was done; n2 takes 2 and 3 with it: back to 1? It is held elsewhere, so from there
    async with scene(Faults().lose_node("n2", after=3)) as play:
        outcome = await play.run(hosted(n1=[0, 1, 4], n2=[2, 3]))
        assert await play.result(outcome) == relayed([0, 1, 4])
        assert play.trained == [0, 1, 2, 3, 4]


async def test_a_model_released_on_a_live_node_is_trained_again() -> None:
    faults = Faults().lose_node("n2", before=3).lose_node("n3", after=2)
    async with scene(faults) as play:
        # n3 goes with the result of 2; then n2, which held 1: only the start is left, and n1 trains 0 again
        outcome = await play.run(hosted(n1=[0, 4], n2=[1, 3], n3=[2]), relay=RelayMode.AUTO)
        assert await play.result(outcome) == relayed([0, 4])
        assert play.trained == [0, 1, 2, 0, 4]
        assert set(play.skipped) == {1, 2, 3}


async def test_a_holder_that_its_reader_misses_first_is_not_the_readers_fault() -> None:
    async with scene(Faults().vanish_node("n2", after=1)) as play:
        outcome = await play.run(TWO_NODES, relay=RelayMode.DIRECT)
        assert await play.result(outcome) == relayed([0, 2, 4])
        assert set(play.skipped) == {1, 3, 5}


async def test_the_node_lost_while_its_result_is_collected_is_left_out() -> None:
    async with scene(Faults().lose_node_when_collected("n2")) as play:
        outcome = await play.run(hosted(n1=[0, 1], n2=[2]))
        assert await play.result(outcome) == relayed([0, 1])
        assert set(play.skipped) == {2}


async def test_the_only_node_lost_while_its_result_is_collected_fails_the_group() -> None:
    async with scene(Faults().lose_node_when_collected("n1")) as play:
        outcome = await play.run(ONE_NODE)
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NODE_LOST
        play.assert_released()


async def test_a_restarted_node_has_lost_its_models_and_trains_again() -> None:
    async with scene(Faults().restart_node("n2", after=1)) as play:
        outcome = await play.run(TWO_NODES)
        assert await play.result(outcome) == relayed(range(6))
        assert play.trained == [0, 1, 1, 2, 3, 4, 5]
        assert play.skipped == {}


async def test_a_node_restarted_while_its_result_is_collected_trains_again() -> None:
    async with scene(Faults().restart_node_when_collected("n1")) as play:
        outcome = await play.run(hosted(n1=[0, 1]))
        assert await play.result(outcome) == relayed([0, 1])
        assert play.trained == [0, 1, 0, 1]


async def test_a_result_that_never_comes_up_fails_the_group() -> None:
    async with scene(Faults().never_send_up("n1")) as play:
        outcome = await play.run(ONE_NODE)
        assert await play.result(outcome) == relayed(range(5))
        assert list(play.skipped) == [5]
        assert f"made no progress for {STALL_TIMEOUT_S:.0f} s" in str(play.skipped[5])


@pytest.mark.parametrize(
    "faults",
    [
        lambda: Faults().fail(1).lose_node("n1", before=4),
        lambda: Faults().stall(0).lose_node("n2", after=5),
        lambda: Faults().restart_node("n1", after=2).fail(3),
    ],
)
async def test_the_same_failures_give_the_same_bits(faults: Callable[[], Faults]) -> None:
    values = []
    for _ in range(3):
        async with scene(faults()) as play:
            values.append(await play.result(await play.run(TWO_NODES, shuffle=True)))
    assert len(set(values)) == 1


async def test_a_relay_that_is_called_off_half_way_leaves_nothing_behind() -> None:
    async with scene(Faults().hold_for_good(3)) as play:
        running = asyncio.create_task(play.run(TWO_NODES, relay=RelayMode.MANAGER))
        await play.holding.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        play.assert_released()
        assert play.trained == [0, 1, 2]
        assert {(3, 0), (5, 0)} <= play.nodes["n2"].cancelled()
