"""Every client has the model of the group that it last trained in."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import Failure, FailureCode, ModelRef
from tests.support.scripted import model
from tests.support.staged import START, Stage, stage
from top_server.groups.lost import LOST
from top_server.merging import MERGES
from top_server.models import INITIAL, Held


def own(client: int, round_number: int = 1) -> ModelRef:
    return ModelRef(f"run/{round_number}/9/alone/{client}.0")


def starts(s: Stage, *group: int) -> list[tuple[str, int | None, float]]:
    return [(held.ref.id, held.client, weight) for held, weight in s.start(group)]


def welcome(s: Stage, client: int, held: Held) -> None:
    s.context.models.apply(dict.fromkeys(s.merging.welcome((client,)), held))


async def test_clients_that_never_trained_share_the_initial_model_which_counts_once() -> None:
    async with stage("none") as s:
        assert starts(s, 0, 1, 2) == [("run/initial", None, 10 + 11 + 12)]
        assert await s.value(s.of(3)) == START


async def test_members_of_a_group_share_its_model_and_others_keep_theirs() -> None:
    async with stage("none") as s:
        await s.take(1, await s.trained((0, 2), 5.0, number=3))
        assert [await s.value(s.of(client)) for client in range(4)] == [5.0, START, 5.0, START]
        # in the order of first occurrence
        assert starts(s, 0, 1, 2) == [("run/1/3", None, 10 + 12), ("run/initial", None, 11)]
        assert starts(s, 1, 2, 3) == [("run/initial", None, 11 + 13), ("run/1/3", None, 12)]


async def test_a_client_that_trained_alone_has_its_model_at_home() -> None:
    async with stage("none") as s:
        assert await s.take(1, s.alone({0: own(0), 1: own(1)})) is None
        assert starts(s, 0) == [(own(0).id, 0, 10)]
        assert starts(s, 0, 1, 2) == [(own(0).id, 0, 10), (own(1).id, 1, 11), ("run/initial", None, 12)]
        assert len(s.store) == 1


async def test_those_left_out_of_a_group_keep_their_models() -> None:
    async with stage("none") as s:
        await s.take(1, await s.trained((0, 1), 5.0))
        outcome = await s.trained((0,), 6.0, skipped={1: "its node was slow"})
        await s.take(2, outcome)
        assert [await s.value(s.of(client)) for client in (0, 1)] == [6.0, 5.0]
        assert not s.journal.of_kind("model_lost")


async def test_a_group_that_failed_changes_nothing() -> None:
    async with stage("none") as s:
        await s.take(1, await s.trained((0, 1), 5.0))
        failure = Failure(FailureCode.UNREACHABLE, "manager m0")
        assert await s.take(2, s.outcome("parallel", failure)) == failure
        assert await s.value(s.of(0)) == 5.0


async def test_a_model_that_nobody_has_any_more_is_not_held() -> None:
    async with stage("none") as s:
        await s.take(1, await s.trained((0, 1), 5.0, number=0))
        await s.take(1, await s.trained((2, 3), 6.0, number=1))
        await s.take(2, await s.trained((0, 2), 7.0, number=0))
        assert len(s.store) == 4  # the initial one, and 1 and 3 still have the first two
        await s.take(2, s.alone({1: own(1), 3: own(3)}))
        assert len(s.store) == 2
        assert len(s.made) == 0


async def test_a_client_whose_own_model_is_lost_starts_from_the_initial_one_again() -> None:
    async with stage("none") as s:
        await s.take(1, s.alone({0: own(0), 1: own(1)}))
        own_starts = {client: s.of(client) for client in (0, 1)}
        failure = Failure(FailureCode.NO_SUCH_MODEL, "no member trained")
        outcome = s.outcome("alone", failure, skipped={1: "this node has it no more"}, own_starts=own_starts)
        assert await s.take(2, outcome) == failure
        assert [event["client"] for event in s.journal.of_kind("model_lost")] == [1]
        assert starts(s, 0, 1) == [(own(0).id, 0, 10), ("run/initial", None, 11)]


async def test_a_model_whose_node_is_away_may_come_back_with_it() -> None:
    async with stage("none") as s:
        await s.take(1, s.alone({0: own(0), 1: own(1)}))
        lost = {client: Failure(code, "its node") for client, code in enumerate(sorted(LOST))}
        outcome = await s.trained((2, 3), 5.0)
        assert await s.take(2, dataclasses.replace(outcome, lost=lost)) is None
        assert not s.journal.of_kind("model_lost")
        assert starts(s, 0, 1) == [(own(0).id, 0, 10), (own(1).id, 1, 11)]


async def test_a_part_of_a_start_that_is_lost_costs_nobody_else_theirs() -> None:
    async with stage("none") as s:
        await s.take(1, s.alone({0: own(0), 1: own(1)}))
        await s.take(1, await s.trained((2, 3), 5.0))
        failure = Failure(FailureCode.STALLED, "no member trained")
        outcome = s.outcome("parallel", failure, skipped=dict.fromkeys((0, 1, 2), "it could not be had"))
        lost = {1: Failure(FailureCode.NO_SUCH_MODEL, "gone")}
        assert await s.take(2, dataclasses.replace(outcome, lost=lost)) == failure
        told = s.journal.of_kind("model_lost")
        assert [(event["client"], event["reason"]) for event in told] == [(1, str(lost[1]))]
        assert starts(s, 0, 1, 2) == [(own(0).id, 0, 10), ("run/initial", None, 11), ("run/1/0", None, 12)]


async def test_a_lost_model_counts_as_untrained_and_the_model_given_to_a_newcomer_as_trained() -> None:
    async with stage("none") as s:
        await s.take(1, s.alone({0: own(0), 1: own(1)}))
        welcome(s, 2, s.of(0))
        welcome(s, 3, s.context.models[INITIAL])
        assert [bool(s.untrained(client)) for client in range(4)] == [False, False, False, True]
        own_starts = {1: s.of(1)}
        outcome = s.outcome("alone", Failure(FailureCode.NO_SUCH_MODEL, "it"), skipped={1: ""}, own_starts=own_starts)
        await s.take(2, outcome)
        assert s.untrained(1)


async def test_newcomers_start_from_the_model_that_they_are_given() -> None:
    async with stage("none") as s:
        held = s.context.models.put(["for a while"], "run/2/newcomers", model(8.0))
        welcome(s, 2, held)
        welcome(s, 3, held)
        s.context.models.apply({"for a while": None})
        assert starts(s, 2, 3) == [("run/2/newcomers", None, 12 + 13)]
        assert await s.value(s.of(2)) == 8.0


@pytest.mark.parametrize("scheme", ["fedcollab", "fedcluster", "kmeans", "naive-gsp", "global"])
async def test_members_of_a_lasting_group_start_from_the_model_that_was_trained_last(scheme: str) -> None:
    async with stage("none", scheme=scheme) as s:
        await s.take(1, await s.trained((0, 1, 2), 5.0))
        assert starts(s, 0, 1, 2, 3) == [("run/1/0", None, 10 + 11 + 12)]
        await s.take(2, await s.trained((0, 1), 6.0, skipped={2: "its node was slow"}))
        assert starts(s, 0, 1, 2, 3) == [("run/2/0", None, 10 + 11)]  # nor does an old model pull it back
        assert starts(s, 2, 3) == [("run/1/0", None, 12)]
        assert starts(s, 3) == [("run/initial", None, 13)]


async def test_a_lost_model_is_not_part_of_the_start_of_a_lasting_group() -> None:
    async with stage("none", scheme="fedcollab") as s:
        await s.take(1, s.alone({0: own(0), 1: own(1)}))
        assert starts(s, 0, 1, 2) == [(own(0).id, 0, 10), (own(1).id, 1, 11)]
        failure = Failure(FailureCode.NO_SUCH_MODEL, "no member trained")
        own_starts = {1: s.of(1)}
        await s.take(2, s.outcome("alone", failure, skipped={1: "gone"}, own_starts=own_starts))
        assert starts(s, 0, 1, 2) == [(own(0).id, 0, 10)]


async def test_who_trained_last_is_known_after_a_restart() -> None:
    async with stage("none", scheme="fedcollab") as s:
        await s.take(1, await s.trained((0, 1), 5.0))
        await s.take(2, await s.trained((0,), 6.0, number=1, skipped={1: "its node was slow"}))
        saved = json.loads(json.dumps(s.merging.state()[0]))
        before = starts(s, 0, 1, 2)
        s.merging = MERGES["none"].load()(s.merging.settings)
        s.merging.restore(saved, {})
        assert starts(s, 0, 1, 2) == before == [("run/2/1", None, 10)]


async def test_clients_that_left_count_for_no_start() -> None:
    async with stage("none") as s:
        assert starts(s, 3, 7) == [("run/initial", None, 13)]
        assert starts(s, 7) == []


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.lists(st.integers(0, 3), min_size=4, max_size=4),  # client -> group
        max_size=5,
    )
)
async def test_whatever_the_groups_every_client_has_the_last_model_of_its_group_and_no_other_is_held(
    rounds: list[list[int]],
) -> None:
    async with stage("none") as s:
        expected: dict[int, object] = dict.fromkeys(range(4), START)
        for number, places in enumerate(rounds, 1):
            groups = [[c for c in range(4) if places[c] == place] for place in sorted(set(places))]
            for index, group in enumerate(groups):
                if len(group) > 1:
                    await s.take(number, await s.trained(group, 10.0 * number + index, index))
                    expected.update(dict.fromkeys(group, 10.0 * number + index))
                else:
                    await s.take(number, s.alone({group[0]: own(group[0], number)}))
                    expected[group[0]] = own(group[0], number).id
        for client, what in expected.items():
            held: Held = s.of(client)
            assert (held.ref.id if held.client is not None else await s.value(held)) == what
        here = {s.of(client).ref.id for client in range(4) if s.of(client).client is None}
        assert len(s.store) == len(here | {s.context.models[INITIAL].ref.id})
