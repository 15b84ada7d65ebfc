"""Models that take long to come here, or whose link is cut meanwhile: nobody is blamed who only waits for them."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from fedgsp.messages import FailureCode, FinishedHop, Member, ModelRef, Part, RelayMode, SourceKind, Train
from fedgsp.tensors.weights import Weights
from group_manager.members import Members
from group_manager.models import Models
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, relayed, scene
from tests.support.scripted import CUT_S, RETURN_S, STALL_TIMEOUT_S, let_others_run, model


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


def slow_top_server(play: Scene, monkeypatch: pytest.MonkeyPatch, seconds: float, cut: str = "") -> None:
    """The start comes from the top server after so long; the connection of a node is cut just before that."""
    fetch = Models._fetch_from_top_server

    async def slowly(models: Models, model_id: str, digest: bytes) -> Weights:
        for _ in range(5):
            await let_others_run()
            play.clock.advance(seconds / 5)
        if cut:
            node = play.nodes[cut]
            await play.members.detach(node.session, node.session.outbox)
            for _ in range(6):
                await let_others_run()
                play.clock.advance(CUT_S / 6)
            await let_others_run()
            await node.attach()
        return await fetch(models, model_id, digest)

    monkeypatch.setattr(Models, "_fetch_from_top_server", slowly)


@pytest.mark.parametrize("program", ["parallel", "alone", "evaluate"])
async def test_all_readers_of_a_start_that_comes_slowly_have_their_time(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults()
    for client in (1, 2):  # the first member answers before the others have reported any progress
        faults.hold(client, until=0)
    async with scene(faults) as play:
        slow_top_server(play, monkeypatch, 2 * STALL_TIMEOUT_S)
        await play.run(all_by_manager(), program, relay=RelayMode.MANAGER, max_model_bytes=1 << 24)
        assert (play.done, play.skipped) == ([0, 1, 2], {})


async def test_a_node_that_is_cut_while_all_wait_for_the_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as play:
        play.members = Members(RETURN_S)
        slow_top_server(play, monkeypatch, 2 * STALL_TIMEOUT_S, cut="n0")
        await play.run(all_by_manager(), "parallel", relay=RelayMode.MANAGER, max_model_bytes=1 << 24)
        assert (play.done, play.skipped) == ([0, 1, 2], {})


async def test_a_holder_that_is_gone_is_not_waited_for_until_its_readers_have_ended() -> None:
    async with scene() as play:
        play.members = Members(RETURN_S)
        members = hosted(n0=[0], n9=[9])
        await play.attach(members)
        own, gone = model(5.0), play.nodes.pop("n9")
        await play.members.detach(gone.session, gone.session.outbox)
        play.clock.advance(10 * RETURN_S)
        parts = (Part(own.ref("own"), weight=1.0, client=9, node="n9"),)
        began = play.members.time()
        await play.run(members[:1], "parallel", max_model_bytes=1 << 24, parts=parts, start=ModelRef("mean"))
        assert [failure and failure.code for failure in play.skipped.values()] == [FailureCode.NODE_LOST]
        assert play.members.time() - began < STALL_TIMEOUT_S / 2


async def test_a_reader_that_had_to_get_its_start_by_the_manager_gets_the_next_one_directly() -> None:
    members = hosted(n0=[0], n1=[1], n2=[2])
    members[1] = dataclasses.replace(members[1], peer_address="")
    async with scene(Faults().fail(1)) as play:
        await play.run(members)
        assert list(play.skipped) == [1]
        works = [order.work for order in play.nodes["n2"].orders if isinstance(order.work, Train)]
        kinds = [[source.kind for source in work.start.sources] for work in works if work.start is not None]
        assert kinds == [[SourceKind.MANAGER], [SourceKind.NODE, SourceKind.MANAGER]]


@pytest.mark.parametrize("code", [FailureCode.STALLED, FailureCode.BAD_STREAM, FailureCode.UNREACHABLE])
async def test_a_start_that_cannot_be_measured_is_not_the_fault_of_its_reader(code: FailureCode) -> None:
    """The manager before this one was lost: the model of client 1 is at its node alone."""
    members = hosted(n0=[0], n1=[1], n2=[2], n3=[3])
    async with scene(Faults().refuse_upload("n1", always=True, code=code)) as play:
        await play.attach(members)
        finished = []
        for position in (0, 1):
            made, model_id = model(relayed([0, 1][: position + 1])), f"run/1/0/relay/{position}.0"
            play.nodes[members[position].node].store.put(model_id, made)
            finished.append(FinishedHop(members[position], made.ref(model_id)))
        await play.run(members, attempt=1, finished=tuple(finished), most_update_ratio=1000.0)
        assert list(play.skipped) == [1]


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
