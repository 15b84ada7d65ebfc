"""Discriminate: exchanges of client discriminators through the manager, and the distances that come of them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from fedgsp.messages import (
    Discrimination,
    DiscriminatorSettings,
    FailureCode,
    GroupResult,
    Member,
    NetworksLeft,
    RelayMode,
    SourceKind,
    TensorSpec,
)
from tests.support.faults import Faults
from tests.support.scene import MANAGER, Scene, hosted, scene
from tests.support.scripted_networks import NETWORK_BYTES, Script, learned, learned_together, plan, stack

THREE = hosted(n1=[0, 2], n2=[1])
FOUR = hosted(n1=[0, 2], n2=[1, 3])


@asynccontextmanager
async def discriminating(
    members: Sequence[Member], script: Script | None = None, faults: Faults | None = None
) -> AsyncIterator[tuple[Scene, Script]]:
    script = script or Script()
    async with scene(faults) as play:
        await play.attach(members)
        for node in play.nodes.values():
            node.script = script
        yield play, script


async def run(play: Scene, members: Sequence[Member], how: Discrimination | None) -> GroupResult:
    outcome = await play.run(members, "discriminate", start=None, discrimination=how)
    assert isinstance(outcome, GroupResult), outcome
    return outcome


async def matrix_of(play: Scene, outcome: GroupResult) -> np.ndarray:
    """The distances, which must be all that anybody still keeps."""
    assert outcome.ref is not None
    weights = await play.store.get(outcome.ref.id)
    assert weights.ref(outcome.ref.id) == outcome.ref
    play.assert_released(here=1)
    return np.array(weights.arrays["distances"])


def left(play: Scene) -> list[NetworksLeft]:
    return [event.kind for event in play.events if isinstance(event.kind, NetworksLeft)]


def means(clients: Sequence[int], exchanges: int) -> dict[tuple[int, int], list[float]]:
    """What the network of each pair is after 1, 2, ... exchanges, one pair at a time."""
    found: dict[tuple[int, int], list[float]] = {}
    for one in clients:
        for other in clients:
            if one < other:
                number, history = 0.0, []
                for _ in range(exchanges):
                    number = (learned(one, other, number) + learned(other, one, number)) / 2
                    history.append(number)
                found[one, other] = found[other, one] = history
    return found


# --- exchanges


async def test_the_paper_s_earliest_stop_is_after_101_exchanges() -> None:
    """Judged after 1, 11, 21, ... exchanges: best at first, then ten times no better."""
    async with discriminating(THREE[:2]) as (play, script):
        await run(play, THREE[:2], plan(exchanges=2000))
        assert script.judged(0) == script.judged(1) == list(range(1, 102, 10))
        assert script.exchanges(0) == list(range(102))
        assert left(play) == [*(NetworksLeft(done, 1, 1) for done in range(1, 100, 10)), NetworksLeft(101, 0, 1)]


@pytest.mark.parametrize(
    ("exchanges", "judge_every", "judged"),
    [
        (1, 10, [1]),
        (2, 10, [1, 2]),
        (9, 10, [1, 9]),
        (11, 10, [1, 11]),
        (12, 10, [1, 11, 12]),
        (4, 1, [1, 2, 3, 4]),
        (4, 2, [1, 3, 4]),
        (5, 3, [1, 4, 5]),
    ],
)
async def test_the_last_networks_are_judged_in_an_exchange_without_training(
    exchanges: int, judge_every: int, judged: list[int]
) -> None:
    async with discriminating(THREE[:2]) as (play, script):
        await run(play, THREE[:2], plan(exchanges=exchanges, judge_every=judge_every))
        for client in (0, 1):
            assert script.exchanges(client) == list(range(exchanges + 1))
            assert script.judged(client) == judged
            assert [order.exchange for order in script.of(client) if not order.work.produces] == [exchanges]
        assert [event.exchanges for event in left(play)] == judged


async def test_every_client_goes_on_from_the_means_of_its_pairs() -> None:
    async with discriminating(FOUR) as (play, script):
        await run(play, FOUR, plan(exchanges=6))
        expected = means(range(4), 6)
        for client in range(4):
            first, *later = script.of(client)
            assert first.start is None
            assert first.work.others == tuple(other for other in range(4) if other != client)
            assert [order.start for order in later] == [
                [expected[client, other][exchange] for other in first.work.others] for exchange in range(6)
            ]


async def test_clients_are_told_the_settings_and_get_their_stacks_from_the_manager() -> None:
    async with discriminating(THREE) as (play, script):
        await run(play, THREE, plan(exchanges=2))
        assert {order.work.settings for order in script.asked} == {DiscriminatorSettings(10, 1, 5, 0.1, 0)}
        starts = [order.work.start for order in script.asked if order.exchange]
        assert all(start and start.sources == (MANAGER,) and not start.keep for start in starts)
        assert len({start.model_id for start in starts if start}) == len(starts)


@pytest.mark.parametrize("relay", RelayMode)
async def test_networks_go_by_way_of_the_manager_in_every_mode(relay: RelayMode) -> None:
    async with discriminating(THREE) as (play, _):
        outcome = await play.run(THREE, "discriminate", start=None, discrimination=plan(exchanges=3), relay=relay)
        assert isinstance(outcome, GroupResult)
        # of three clients with two networks each: three times up, and as often down, the last time to be judged
        assert (outcome.bytes_direct, outcome.bytes_relayed) == (0, 3 * 2 * NETWORK_BYTES * (3 + 3))


# --- the result


async def test_the_result_names_the_clients_and_their_distances() -> None:
    members = [FOUR[2], FOUR[0], FOUR[3]]
    script = Script(right=lambda client, _, other: 60 + 10 * min(client, other))
    async with discriminating(members, script) as (play, _):
        outcome = await run(play, members, plan(exchanges=1))
        assert outcome.ref is not None
        weights = await play.store.get(outcome.ref.id)
        assert weights.tensors == (
            TensorSpec("clients", "int64", (3,), False),
            TensorSpec("distances", "float64", (3, 3), False),
            TensorSpec("errors", "float64", (3, 3), False),
        )
        assert weights.arrays["clients"].tolist() == [2, 0, 3]
        expected = np.array([[0, 0.2, 0.6], [0.2, 0, 0.2], [0.6, 0.2, 0]])
        assert await matrix_of(play, outcome) == pytest.approx(expected)
        assert outcome.samples == 0
        assert play.done == []


async def test_the_best_judgement_of_a_pair_counts() -> None:
    curve = {1: 60, 2: 80, 3: 70, 4: 75}
    async with discriminating(THREE[:2], Script(right=lambda _, exchange, __: curve[exchange])) as (play, _):
        outcome = await run(play, THREE[:2], plan(exchanges=4, judge_every=1, patience=3))
        assert (await matrix_of(play, outcome))[0, 1] == pytest.approx(0.6)


async def test_the_judgement_after_the_last_exchange_counts() -> None:
    async with discriminating(THREE[:2], Script(right=lambda _, exchange, __: 50 + 5 * exchange)) as (play, _):
        outcome = await run(play, THREE[:2], plan(exchanges=5))
        assert (await matrix_of(play, outcome))[0, 1] == pytest.approx(0.5)


async def test_members_without_pairs_have_nothing_to_do() -> None:
    async with discriminating(THREE) as (play, script):
        for members in ([], THREE[:1]):
            outcome = await run(play, members, plan())
            assert outcome.ref is not None
            found = await play.store.get(outcome.ref.id)
            assert found.arrays["distances"].tolist() == [[0.0]] * len(members)
            play.store.release([outcome.ref.id])
        assert (script.asked, left(play)) == ([], [])


async def test_with_newcomers_only_their_pairs_learn() -> None:
    async with discriminating(FOUR) as (play, script):
        outcome = await run(play, FOUR, plan(exchanges=2, newcomers=(3,)))
        assert [script.of(client)[0].work.others for client in range(4)] == [(3,), (3,), (3,), (0, 1, 2)]
        found = await matrix_of(play, outcome)
        assert found[:3, :3].tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        assert found[3].tolist() == [0, 0, 0, 0]
        assert left(play) == [NetworksLeft(1, 3, 3), NetworksLeft(2, 3, 3)]


# --- stopping


async def test_a_pair_that_stopped_is_in_no_stack_any_more_and_bytes_fall() -> None:
    """Of (0, 1) the accuracy stays, of the others it rises."""
    script = Script(right=lambda client, exchange, other: 50 if {client, other} == {0, 1} else 50 + exchange)
    async with discriminating(THREE, script) as (play, _):
        outcome = await run(play, THREE, plan(exchanges=5, judge_every=1, patience=2))
        assert [[order.work.others for order in script.of(client)] for client in range(3)] == [
            [(1, 2)] * 4 + [(2,)] * 2,
            [(0, 2)] * 4 + [(2,)] * 2,
            [(0, 1)] * 6,
        ]
        assert [event.left for event in left(play)] == [3, 3, 2, 2, 2]
        expected = means(range(3), 5)
        assert [order.start for order in script.of(0)][4:] == [[expected[0, 2][3]], [expected[0, 2][4]]]
        # exchanges 0 .. 3 with six networks, of which four go on; the last one has nothing to send
        up, down = 4 * 6 + 4, 3 * 6 + 4 + 4
        assert outcome.bytes_relayed == NETWORK_BYTES * (up + down)


async def test_a_client_whose_pairs_have_all_stopped_is_asked_no_more() -> None:
    script = Script(right=lambda client, exchange, other: 50 if 0 in (client, other) else 50 + exchange)
    async with discriminating(THREE, script) as (play, _):
        await run(play, THREE, plan(exchanges=6, judge_every=1, patience=1))
        assert [script.exchanges(client)[-1] for client in range(3)] == [2, 6, 6]
        assert script.of(1)[-1].work.others == (2,)


# --- a shared network


async def test_a_shared_network_starts_from_the_plain_mean_which_nodes_keep_while_it_is_needed() -> None:
    async with discriminating(THREE) as (play, script):
        outcome = await run(play, THREE, plan(shared=True, exchanges=4))
        number, expected = 0.0, []
        for _ in range(4):
            number = sum(learned_together(client, number) for client in range(3)) / 3
            expected.append([number])
        for client in range(3):
            assert [order.start for order in script.of(client)] == [None, *expected]
            assert {order.work.others for order in script.of(client)} == {(0, 1, 2)}
        starts = {order.work.start for order in script.asked if order.exchange == 2}
        (start,) = starts
        assert start is not None
        assert (start.keep, start.sources) == (True, (MANAGER,))
        assert outcome.ref is not None
        await matrix_of(play, outcome)
        # never more than the start of an exchange and what two clients make of it
        assert max(node.most_held for node in play.nodes.values()) <= 3


async def test_one_judgement_counts_for_all_pairs_of_a_shared_network() -> None:
    curves = {frozenset((0, 1)): (60, 50, 99), frozenset((0, 2)): (60, 90, 60), frozenset((1, 2)): (60, 80, 60)}
    script = Script(
        right=lambda client, exchange, other: curves.get(frozenset((client, other)), (0,) * 3)[exchange - 1]
    )
    async with discriminating(THREE, script) as (play, _):
        outcome = await run(play, THREE, plan(shared=True, exchanges=3, judge_every=1))
        expected = np.array([[0, 0, 0.8], [0, 0, 0.6], [0.8, 0.6, 0]])
        assert await matrix_of(play, outcome) == pytest.approx(expected)


async def test_a_shared_network_stops_exactly_when_its_patience_ends() -> None:
    async with discriminating(THREE) as (play, script):
        await run(play, THREE, plan(shared=True, exchanges=2000))
        assert script.judged(2) == list(range(1, 102, 10))
        assert left(play)[-2:] == [NetworksLeft(91, 3, 3), NetworksLeft(101, 0, 3)]


async def test_outputs_keep_their_places_when_a_client_fails() -> None:
    script = Script(right=lambda client, _, other: 100 - 10 * client - other)
    async with discriminating(THREE, script, Faults().fail(1)) as (play, _):
        outcome = await run(play, THREE, plan(shared=True, exchanges=1))
        assert [script.exchanges(client) for client in range(3)] == [[0, 1], [], [0, 1]]
        assert {order.work.others for order in script.asked} == {(0, 1, 2)}
        assert script.of(2)[1].start == [(learned_together(0, 0) + learned_together(2, 0)) / 2]
        found = await matrix_of(play, outcome)
        assert found == pytest.approx(np.array([[0, 1, 0.78], [1, 0, 1], [0.78, 1, 0]]))


# --- orders that make no sense


@pytest.mark.parametrize("how", [None, Discrimination(None, 5, 1, 1), plan(judge_every=0), plan(patience=0)])
async def test_discriminators_without_settings_or_patience_are_refused_and_nobody_is_asked(
    how: Discrimination | None,
) -> None:
    async with discriminating(THREE) as (play, script):
        outcome = await play.run(THREE, "discriminate", start=None, discrimination=how)
        assert getattr(outcome, "code", None) is FailureCode.BAD_ORDER
        assert script.asked == []
        play.assert_released()


async def test_without_exchanges_nothing_is_known() -> None:
    async with discriminating(THREE) as (play, script):
        outcome = await run(play, THREE, plan(exchanges=0))
        assert (await matrix_of(play, outcome)).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        assert script.asked == []


async def test_a_client_without_a_validation_part_is_as_far_as_can_be() -> None:
    script = Script(right=lambda client, _, other: 60 if client < 2 else 0)
    script.samples[2] = 0
    async with discriminating(THREE, script) as (play, _):
        outcome = await run(play, THREE, plan(exchanges=3, judge_every=1))
        assert await matrix_of(play, outcome) == pytest.approx(np.array([[0, 0.2, 1], [0.2, 0, 1], [1, 1, 0]]))
        assert script.exchanges(2) == [0, 1]


async def test_a_client_listed_twice_counts_once() -> None:
    async with discriminating(THREE) as (play, script):
        await run(play, [*THREE, dataclasses.replace(THREE[0])], plan(exchanges=1))
        assert script.exchanges(0) == [0, 1]


async def test_a_model_is_fetched_from_the_manager_alone() -> None:
    async with discriminating(THREE) as (play, script):
        await run(play, THREE, plan(exchanges=2))
        kinds = {source.kind for order in script.asked if order.work.start for source in order.work.start.sources}
        assert kinds == {SourceKind.MANAGER}


# --- asked again


@pytest.mark.parametrize("shared", [False, True], ids=["pairs", "shared"])
@pytest.mark.parametrize(("attempt", "left"), [(1, False), (0, True)], ids=["another manager", "the same again"])
async def test_networks_that_an_earlier_call_left_at_the_nodes_are_not_taken_for_new_ones(
    attempt: int, left: bool, shared: bool
) -> None:
    """They went on without hearing that nobody wants these any more; who takes over for a lost manager has them go."""
    how = plan(shared=shared, exchanges=4, judge_every=2)

    def starts(script: Script) -> list[list[float] | None]:
        return [asked.start for asked in script.asked]

    async with discriminating(THREE) as (play, script):
        await run(play, THREE, how)
        expected = starts(script)
        stale = [asked.work.produces for asked in script.asked if asked.work.produces]
        script.asked.clear()
        for node in play.nodes.values():
            for model_id in stale:
                node.store.put(model_id, stack(*[1e3] * (1 if shared else 2)))
        await play.run(THREE, "discriminate", start=None, discrimination=how, serial=1, attempt=attempt)
        assert starts(script) == expected
        assert bool(len(play.nodes["n2"].store)) == left
