"""Models that take long to come here, or whose link is cut meanwhile: nobody is blamed who only waits for them."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from fedgsp.messages import FailureCode, Member, RelayMode
from group_manager.members import Members
from tests.support.faults import Faults
from tests.support.scene import hosted, relayed, scene
from tests.support.scripted import CUT_S, RETURN_S


def all_by_manager() -> list[Member]:
    """Members that cannot be dialled by each other."""
    return [dataclasses.replace(member, peer_address="") for member in hosted(n0=[0], n1=[1], n2=[2])]


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.MANAGER])
async def test_a_reader_may_wait_longer_than_the_stall_timeout_for_a_model_that_is_coming(relay: RelayMode) -> None:
    async with scene(Faults().upload_slowly("n0").upload_slowly("n1")) as play:
        outcome = await play.run(all_by_manager(), relay=relay)
        assert (play.done, play.skipped) == ([0, 1, 2], {})
        assert await play.result(outcome) == relayed([0, 1, 2])


async def test_so_may_a_reader_that_could_not_dial_the_holder() -> None:
    async with scene(Faults().unreachable("n0").upload_slowly("n0")) as play:
        outcome = await play.run(hosted(n0=[0], n1=[1], n2=[2]))
        assert (play.done, play.rerouted, play.skipped) == ([0, 1, 2], [1], {})
        assert await play.result(outcome) == relayed([0, 1, 2])


async def test_a_holder_that_sends_nothing_is_blamed_and_not_its_reader() -> None:
    async with scene(Faults().never_send_up("n1", always=True)) as play:
        outcome = await play.run(all_by_manager())
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == {
            1: FailureCode.STALLED
        }
        assert await play.result(outcome) == relayed([0, 2])


async def test_an_upload_that_was_cut_counts_if_the_node_is_back_while_others_train() -> None:
    async with scene(Faults().hold(1, until=9).cut_upload("n0")) as play:
        play.members = Members(RETURN_S)
        running = asyncio.create_task(play.run(hosted(n0=[0], n1=[1]), "parallel", max_model_bytes=1 << 24))
        async with asyncio.timeout(5):
            await play.told[0].wait()
        play.answered[9].set()
        await running
        assert (play.done, play.skipped) == ([0, 1], {})


async def test_an_upload_that_was_cut_does_not_count_if_the_group_waits_for_nobody_else() -> None:
    async with scene(Faults().cut_upload("n1")) as play:
        play.members = Members(RETURN_S)
        await play.run(hosted(n0=[0], n1=[1]), "parallel", max_model_bytes=1 << 24)
        assert CUT_S > RETURN_S
        assert (play.done, list(play.skipped)) == ([0], [1])


async def test_a_break_that_only_the_node_has_noticed_is_a_break() -> None:
    async with scene(Faults().reset(1)) as play:
        play.members = Members(RETURN_S)
        outcome = await play.run(hosted(n0=[0], n1=[1], n2=[2]))
        assert (play.done, play.rerouted, play.skipped) == ([0, 1, 2], [1], {})
        assert await play.result(outcome) == relayed([0, 1, 2])
        assert play.members.breaks("n1") == 1


@pytest.mark.parametrize("bad", [[3], [2, 3], [1, 2, 3]])
async def test_who_sends_a_model_that_cannot_be_measured_is_blamed_alone(bad: list[int]) -> None:
    faults = Faults()
    for client in bad:
        faults.refuse_upload(f"n{client}", always=True, code=FailureCode.BAD_STREAM)
    members = hosted(n0=[0], n1=[1], n2=[2], n3=[3], n4=[4])
    async with scene(faults) as play:
        outcome = await play.run(members, most_update_ratio=1000.0)
        good = [client for client in range(5) if client not in bad]
        assert play.done == good
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == dict.fromkeys(
            bad, FailureCode.BAD_STREAM
        )
        assert await play.result(outcome) == relayed(good)
