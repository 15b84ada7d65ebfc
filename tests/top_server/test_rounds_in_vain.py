"""A round that trains nobody is tried again, given up, or the end of the run: by who was lost, and by who is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, MemberDone, MemberSkipped, ModelRef, Source, SourceKind, Trained
from tests.support.callers import ANYBODY
from tests.support.fuzzing import soon
from tests.support.hellos import hello
from tests.support.scripted import TENSORS, let_others_run
from tests.support.staged import Stage, stage
from top_server.groups.lost import AllLostError
from top_server.groups.moved import Moved
from top_server.groups.run import MOST_NUMBERED, MOST_TRIES
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.in_vain import FIRST_TRY, MOST_IN_VAIN, Tries, note_in_vain
from top_server.nodes.node import Node
from top_server.rounds import merge

LOST, REFUSED = Failure(FailureCode.NODE_LOST, "its node left"), Failure(FailureCode.POLICY, "not allowed")
#: The clients of a node that is there, and those of a node that has left.
THERE, AWAY = (0, 1, 2, 3), (6, 7)
SECOND = Tries(1)


@asynccontextmanager
async def one_away(join_timeout: float = 120.0) -> AsyncIterator[Stage]:
    async with stage("weighted-mean", len(THERE), scheme="fedavg", join_timeout=join_timeout) as s:
        s.context.membership.departures.counting = True  # the run has its clients
        await s.context.membership.leave(await comes(s), "its stream was lost")
        yield s


async def comes(s: Stage) -> Node:
    node = await s.context.membership.admit(hello("n1", AWAY, tensors=TENSORS), ANYBODY)
    assert isinstance(node, Node), node
    return node


async def ends(s: Stage, why: Mapping[int, Failure], tries: Tries = FIRST_TRY) -> None:
    """The one group of a round ends; these clients were asked, and skipped. Its reason is that of the last one."""
    skipped = tuple(MemberSkipped(client, failure) for client, failure in why.items())
    outcome = GroupOutcome(GroupTask(0, "parallel", tuple(why)), s.manager, [*why.values()][-1], (), skipped)

    async def end() -> GroupOutcome:
        return outcome

    await merge(s.context, s.progress, s.merging, 2, [asyncio.create_task(end())], tries=tries)


def given_up(s: Stage) -> int:
    return len(s.journal.of_kind("trained_nobody"))


async def test_a_round_whose_clients_are_gone_is_tried_once_more_and_then_left_to_the_others() -> None:
    async with one_away() as s:
        with pytest.raises(AllLostError, match="round 2 trained nobody"):
            await ends(s, dict.fromkeys(AWAY, LOST))
        assert not given_up(s)
        for _ in range(MOST_IN_VAIN + 1):
            await ends(s, dict.fromkeys(AWAY, LOST), SECOND)
        assert given_up(s) == MOST_IN_VAIN + 1
        assert s.progress.in_vain == 0, "it is no fault of those who are there"


@pytest.mark.parametrize("last", [Tries(MOST_TRIES, MOST_TRIES - 1), Tries(MOST_NUMBERED - 1)])
async def test_clients_that_are_there_and_out_of_reach_have_all_tries_before_others_go_on(last: Tries) -> None:
    """A firewall may let them reach the top server, and no group manager."""
    async with one_away() as s:
        for tries in (FIRST_TRY, SECOND, Tries(last.number - 1, max(0, last.counted - 1))):
            with pytest.raises(AllLostError):
                await ends(s, {2: LOST, 7: LOST}, tries)
        await ends(s, {2: LOST, 7: LOST}, last)
        assert given_up(s) == s.progress.in_vain == 1


@pytest.mark.parametrize("tries", [FIRST_TRY, SECOND, Tries(MOST_NUMBERED - 1, MOST_TRIES - 1)])
async def test_a_round_that_asked_all_who_are_there_is_always_to_be_tried_again(tries: Tries) -> None:
    async with one_away() as s:
        with pytest.raises(AllLostError):
            await ends(s, dict.fromkeys((*THERE, *AWAY), LOST), tries)
        assert not given_up(s)


@pytest.mark.parametrize("refuses", [0, 7])
async def test_one_that_refuses_does_not_hide_that_the_others_were_lost(refuses: int) -> None:
    """Whichever client it is: the reason of the group is that of the last one."""
    async with one_away() as s:
        with pytest.raises(AllLostError, match="node lost: its node left"):
            await ends(s, {**dict.fromkeys((*THERE, *AWAY), LOST), refuses: REFUSED}, SECOND)


async def test_the_next_try_is_told_what_was_moved_in_vain() -> None:
    trained = Trained(ModelRef("m"), 5, source=Source(SourceKind.NODE, "n0"), bytes=7)
    async with one_away() as s:
        task = GroupTask(0, "parallel", (*THERE, *AWAY))
        done = tuple(MemberDone(client, client, trained) for client in (0, 1))
        outcomes = [GroupOutcome(task, s.manager, LOST, done, ()), GroupOutcome(task, s.manager, LOST, done[:1], ())]
        with pytest.raises(AllLostError) as caught:
            await note_in_vain(s.context, s.progress, 2, outcomes, FIRST_TRY)
        assert caught.value.moved == Moved(direct=21)


async def test_who_refuses_is_not_waited_for_and_counts() -> None:
    async with one_away() as s:
        with pytest.raises(AllLostError):
            await ends(s, {2: REFUSED, 7: LOST})
        await ends(s, {2: REFUSED, 7: LOST}, SECOND)
        assert given_up(s) == s.progress.in_vain == 1


async def test_if_all_who_are_there_refuse_the_run_waits_for_those_that_are_away() -> None:
    async with one_away() as s:
        ending = asyncio.create_task(ends(s, dict.fromkeys(THERE, REFUSED)))
        await let_others_run()
        assert not ending.done()
        await comes(s)
        await soon(ending)
        assert given_up(s) == s.progress.in_vain == 1


async def test_if_none_of_them_comes_the_run_ends_with_the_reason() -> None:
    async with one_away(join_timeout=0.01) as s:
        with pytest.raises(RunError, match="round 2 trained nobody: policy: not allowed"):
            await soon(ends(s, dict.fromkeys(THERE, REFUSED)))


async def test_if_nobody_is_away_the_run_ends_at_once() -> None:
    async with one_away() as s:
        await comes(s)
        with pytest.raises(RunError, match="round 2 trained nobody: policy: not allowed"):
            await soon(ends(s, dict.fromkeys((*THERE, *AWAY), REFUSED)))
