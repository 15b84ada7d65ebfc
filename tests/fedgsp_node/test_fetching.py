"""Where a node gets the weights that an order starts from."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedgsp.connections.channels import Channels, start_server
from fedgsp.messages import Failure, FailureCode, Source, SourceKind, Start
from fedgsp.tensors.weights import Weights, WeightsError, without_head
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.fetching import Fetched, Fetcher
from tests.support.callers import OPEN
from tests.support.scripted import let_others_run
from tests.support.serving import nobody, serving
from tests.support.weights import TENSORS, said, some_weights, vector

SIZE = 40


class Peer(ModelServicer):
    """Serves a store, and counts who asks."""

    def __init__(self) -> None:
        self.store = ModelStore()
        self.asked = 0
        self.somebody_asks = asyncio.Event()
        super().__init__(self.store)

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked += 1
        self.somebody_asks.set()
        async for chunk in super().Fetch(request, context):
            yield chunk


@dataclass
class Scene:
    """A fetcher and two peers with models."""

    fetcher: Fetcher
    store: ModelStore
    channels: Channels
    peers: tuple[Peer, Peer]
    sources: tuple[Source, Source]


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    one, other, store = Peer(), Peer(), ModelStore()
    async with serving(one.add_to) as first, serving(other.add_to) as second, Channels() as channels:
        fetcher = Fetcher(store, channels, TENSORS, "127.0.0.1")
        sources = (
            Source(SourceKind.NODE, "n1", first.address),
            Source(SourceKind.MANAGER, "m0", second.address),
        )
        yield Scene(fetcher, store, channels, (one, other), sources)


def same(found: Weights, expected: Weights) -> bool:
    return np.array_equal(found.buffer, expected.buffer)


async def failure(fetching: Any) -> Failure:
    with pytest.raises(WeightsError) as error:
        await fetching
    return error.value.failure


async def test_the_first_source_that_is_named_delivers() -> None:
    async with scene() as s:
        for peer in s.peers:
            peer.store.put("m", some_weights())
        weights, source, size = await s.fetcher.get(Start("m", s.sources))
        assert same(weights, some_weights())
        assert (source, size) == (said(s.sources[0], SIZE), SIZE)
        assert [peer.asked for peer in s.peers] == [1, 0]
        assert "m" not in s.store


async def test_what_the_node_itself_holds_or_will_moves_no_bytes() -> None:
    async with scene() as s:
        local = Source(SourceKind.LOCAL, "n0")
        waiting = asyncio.create_task(s.fetcher.get(Start("m", (local,))))
        await let_others_run()
        assert not waiting.done()
        weights = some_weights()
        s.store.put("m", weights)
        assert await waiting == (weights, local, 0)


async def test_a_model_that_comes_slowly_is_progress_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp.transfers.model_streams.PIECE_BYTES", 8)
    async with scene() as s:
        s.peers[0].store.put("m", some_weights())
        await s.fetcher.get(Start("m", s.sources))
        assert s.fetcher.mark == SIZE // 8


async def test_a_promised_model_is_waited_for() -> None:
    async with scene() as s:
        waiting = asyncio.create_task(s.fetcher.get(Start("m", s.sources)))
        await s.peers[0].somebody_asks.wait()
        s.peers[0].store.put("m", some_weights())
        assert same((await waiting)[0], some_weights())


async def test_a_peer_that_cannot_be_reached_is_passed_over_and_remembered() -> None:
    async with scene() as s, nobody() as gone:
        s.peers[1].store.put("m", some_weights())
        absent = Source(SourceKind.NODE, "n9", gone.address)
        sources = (absent, s.sources[1])
        assert (await s.fetcher.get(Start("m", sources)))[1] == said(s.sources[1], SIZE)
        back = Peer()
        back.store.put("m", some_weights())
        back.store.put("only here", some_weights())
        server, _ = await start_server(gone.address, [back.add_to], OPEN)
        try:
            await s.channels.drop(gone.address)  # and with it gRPC's own memory
            # it is there now, but one attempt was enough
            assert (await s.fetcher.get(Start("m", sources)))[1] == said(s.sources[1], SIZE)
            assert back.asked == 0
        finally:
            await server.stop(None)


async def test_a_server_that_is_away_for_a_moment_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as s, nobody() as gone:
        source = Source(SourceKind.TOP_SERVER, "top server", gone.address)
        asking = asyncio.create_task(s.fetcher.get(Start("m", (source,))))
        while "not had from top_server" not in caplog.text:
            await let_others_run()
            assert not asking.done()
        back = Peer()
        back.store.put("m", some_weights())
        server, _ = await start_server(gone.address, [back.add_to], OPEN)
        try:
            assert same((await asking)[0], some_weights())
        finally:
            await server.stop(None)


async def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp_node.fetching.AGAIN_AFTER_S", 0.01)
    async with scene() as s, nobody() as gone:
        source = Source(SourceKind.MANAGER, "m0", gone.address)
        assert (await failure(s.fetcher.get(Start("m", (source,))))).code is FailureCode.UNREACHABLE


async def test_while_the_link_of_the_node_is_cut_nobody_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp_node.fetching.AGAIN_AFTER_S", 0.01)
    async with scene() as s, nobody() as gone:
        joined = asyncio.Event()
        fetcher = Fetcher(s.store, s.channels, s.fetcher.tensors, "127.0.0.1", joined=joined)
        source = Source(SourceKind.NODE, "n9", gone.address)
        asking = asyncio.create_task(failure(fetcher.get(Start("m", (source,)))))
        while gone.address not in fetcher._unreachable:  # noqa: ASYNC110 (nobody tells that a source has failed)
            await asyncio.sleep(0)
        await let_others_run()
        assert not asking.done()
        joined.set()  # the link works again: it was not the link
        assert (await asking).code is FailureCode.UNREACHABLE


async def test_a_peer_that_was_unreachable_is_still_the_last_resort() -> None:
    async with scene() as s, nobody() as gone:
        absent = Source(SourceKind.NODE, "n9", gone.address)
        assert (await failure(s.fetcher.get(Start("m", (absent,))))).code is FailureCode.UNREACHABLE
        s.peers[0].store.fail("m", Failure(FailureCode.CANCELLED, "called off"))
        assert (await failure(s.fetcher.get(Start("m", (absent, s.sources[0]))))).code is FailureCode.UNREACHABLE


async def test_a_peer_that_answers_is_not_avoided_for_longer_when_it_fails_again() -> None:
    """It was reached: by a model that it gave, or by its word that it has none."""
    async with scene() as s, nobody() as gone:
        source = Source(SourceKind.NODE, "n9", gone.address)
        for model_id in ("m", "unknown"):
            s.fetcher._unreachable.failed(gone.address)
            s.fetcher._unreachable.failed(gone.address)
            assert gone.address in s.fetcher._unreachable
            back = Peer()
            back.store.put("m", some_weights())
            server, _ = await start_server(gone.address, [back.add_to], OPEN)
            try:
                await s.channels.drop(gone.address)
                if model_id == "m":
                    await s.fetcher.get(Start(model_id, (source,)))
                else:
                    back.store.fail(model_id, Failure(FailureCode.CANCELLED, "called off"))
                    assert (await failure(s.fetcher.get(Start(model_id, (source,))))).code is FailureCode.NO_SUCH_MODEL
                assert gone.address not in s.fetcher._unreachable
            finally:
                await server.stop(None)


async def test_a_peer_that_lacks_the_model_is_passed_over_but_not_for_good() -> None:
    async with scene() as s:
        s.peers[0].store.fail("m", Failure(FailureCode.TASK_RAISED, "oops"))
        for peer in s.peers:
            peer.store.put("other", some_weights(2))
        s.peers[1].store.put("m", some_weights(1))
        assert (await s.fetcher.get(Start("m", s.sources)))[1] == said(s.sources[1], SIZE)
        assert (await s.fetcher.get(Start("other", s.sources)))[1] == said(s.sources[0], SIZE)


async def test_the_last_reason_is_given_if_nobody_delivers() -> None:
    async with scene() as s:
        s.peers[0].store.fail("m", Failure(FailureCode.CANCELLED, "called off"))
        s.peers[1].store.fail("m", Failure(FailureCode.TASK_RAISED, "the camera broke"))
        found = await failure(s.fetcher.get(Start("m", s.sources)))
        assert found.code is FailureCode.NO_SUCH_MODEL
        assert "task_raised" in found.detail


async def test_without_a_source_there_is_nothing_to_try() -> None:
    async with scene() as s:
        assert await failure(s.fetcher.get(Start("m", ()))) == Failure(
            FailureCode.NO_SUCH_MODEL, "no source was named for 'm'"
        )


async def test_a_source_of_an_unknown_kind_is_a_wrong_order() -> None:
    async with scene() as s:
        unknown = Source(SourceKind.UNSPECIFIED, "n1", "127.0.0.1:1")
        assert await failure(s.fetcher.get(Start("m", (unknown,)))) == Failure(
            FailureCode.BAD_ORDER, "the order names a source of an unknown kind (unspecified)"
        )


async def test_weights_of_another_shape_are_refused_and_the_next_source_is_tried() -> None:
    async with scene() as s:
        s.peers[0].store.put("m", some_weights(tensors=vector(10)))
        assert (await failure(s.fetcher.get(Start("m", s.sources[:1])))).code is FailureCode.WRONG_SHAPES
        s.peers[1].store.put("m", some_weights())
        assert (await s.fetcher.get(Start("m", s.sources)))[1] == said(s.sources[1], SIZE)


async def test_a_wildcard_host_is_the_one_by_which_the_top_server_is_reached() -> None:
    async with scene() as s:
        s.peers[0].store.put("m", some_weights())
        port = s.sources[0].address.rpartition(":")[2]
        everywhere = Source(SourceKind.TOP_SERVER, "top server", f"0.0.0.0:{port}")
        assert same((await s.fetcher.get(Start("m", (everywhere,))))[0], some_weights())


async def test_a_model_of_the_clients_own_is_here_or_gone_and_moves_no_bytes() -> None:
    async with scene() as s:
        own = Source(SourceKind.OWN, "n0")
        assert await failure(s.fetcher.get(Start("m", (own,)))) == Failure(
            FailureCode.NO_SUCH_MODEL, "this node has model 'm' no more"
        )
        weights = some_weights()
        s.store.put("m", weights)
        assert await s.fetcher.get(Start("m", (own,))) == (weights, own, 0)


async def test_weights_that_come_without_a_head_are_those_of_schemes_whose_heads_stay() -> None:
    tensors = (*TENSORS[:1], dataclasses.replace(TENSORS[1], head=True), *TENSORS[2:])
    async with scene() as s:
        fetcher = Fetcher(s.store, s.channels, tensors, "127.0.0.1")
        bare = some_weights(tensors=without_head(tensors))
        s.peers[0].store.put("bare", bare)
        s.peers[0].store.put("whole", some_weights(tensors=tensors))
        weights, _, _ = await fetcher.get(Start("bare", s.sources[:1], without_head=True))
        assert same(weights, bare)
        for start in (Start("bare", s.sources[:1]), Start("whole", s.sources[:1], without_head=True)):
            assert (await failure(fetcher.get(start))).code is FailureCode.WRONG_SHAPES


# --- weights that several orders start from


async def nobody_uses_any(s: Scene) -> None:
    """Threads that checked weights let go of them a moment later."""
    while s.fetcher._in_use:  # noqa: ASYNC110 (nobody tells when a weak reference ends)
        await asyncio.sleep(0)


def many(s: Scene, count: int = 5) -> list[asyncio.Task[Fetched]]:
    return [asyncio.create_task(s.fetcher.get(Start("m", s.sources, keep=True))) for _ in range(count)]


async def test_orders_that_start_from_the_same_weights_share_one_fetch() -> None:
    async with scene() as s:
        waiting = many(s)
        await s.peers[0].somebody_asks.wait()
        s.peers[0].store.put("m", some_weights())
        found = await asyncio.gather(*waiting)
        assert s.peers[0].asked == 1
        assert len({id(weights) for weights, _, _ in found}) == 1
        assert [size for _, _, size in found] == [SIZE, 0, 0, 0, 0]


async def test_what_is_kept_is_here_for_later_orders_until_it_is_released() -> None:
    async with scene() as s:
        s.peers[0].store.put("m", some_weights())
        await asyncio.gather(*many(s))
        assert (await s.fetcher.get(Start("m", s.sources, keep=True)))[1:] == (Source(SourceKind.LOCAL, ""), 0)
        s.store.release(["m"])
        await nobody_uses_any(s)
        assert (await s.fetcher.get(Start("m", s.sources, keep=True)))[2] == SIZE
        assert s.peers[0].asked == 2


async def test_another_model_of_that_name_is_fetched_again() -> None:
    """A round that is played again after a crash may make one, and this node still has the first."""
    async with scene() as s:
        s.store.put("m", some_weights(1))
        s.peers[0].store.put("m", some_weights())
        for keep in (True, False):
            wanted = Start("m", s.sources, keep=keep, digest=some_weights().digest)
            found, _, size = await s.fetcher.get(wanted)
            assert same(found, some_weights())
            assert size == (SIZE if keep else 0)
            assert same(await s.store.get("m"), some_weights())


async def test_what_is_not_kept_is_shared_as_long_as_it_is_used() -> None:
    async with scene() as s:
        s.peers[0].store.put("m", some_weights())
        together = await asyncio.gather(*(s.fetcher.get(Start("m", s.sources)) for _ in range(2)))
        later = await s.fetcher.get(Start("m", s.sources))
        assert together[0][0] is together[1][0] is later[0]
        assert [size for _, _, size in (*together, later)] == [SIZE, 0, 0]
        assert "m" not in s.store
        del together, later
        await nobody_uses_any(s)
        assert (await s.fetcher.get(Start("m", s.sources)))[2] == SIZE
        assert s.peers[0].asked == 2


async def test_orders_that_name_other_sources_do_not_wait_for_one_another() -> None:
    """The source that one waits for in vain may be why the other was ordered."""
    async with scene() as s:
        silent = asyncio.create_task(s.fetcher.get(Start("m", s.sources[:1])))
        await s.peers[0].somebody_asks.wait()
        s.peers[1].store.put("m", some_weights())
        assert (await s.fetcher.get(Start("m", s.sources[1:])))[1] == said(s.sources[1], SIZE)
        silent.cancel()


async def test_a_shared_fetch_that_fails_fails_for_all_and_can_be_tried_again() -> None:
    async with scene() as s:
        for peer in s.peers:
            peer.store.fail("m", Failure(FailureCode.TASK_RAISED, "oops"))
        for waiting in many(s):
            assert (await failure(waiting)).code is FailureCode.NO_SUCH_MODEL
        s.peers[0].store.put("m", some_weights())
        assert (await s.fetcher.get(Start("m", s.sources, keep=True)))[1] == said(s.sources[0], SIZE)


async def test_a_cancelled_order_does_not_take_a_shared_fetch_with_it() -> None:
    async with scene() as s:
        first, *others = many(s)
        await s.peers[0].somebody_asks.wait()
        first.cancel()
        await let_others_run()
        s.peers[0].store.put("m", some_weights())
        for _, source, _ in await asyncio.gather(*others):
            assert source == s.sources[0]
        assert first.cancelled()


async def test_a_fetch_that_nobody_waits_for_any_more_is_given_up_and_keeps_nothing() -> None:
    async with scene() as s:
        tasks = asyncio.all_tasks()
        waiting = many(s)
        await s.peers[0].somebody_asks.wait()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        again = many(s, 1)  # in the same breath: it must not join the fetch that is given up
        await let_others_run()
        assert len([task for task in asyncio.all_tasks() - tasks if "_try_all" in repr(task)]) == 1
        s.peers[0].store.put("m", some_weights())
        assert (await again[0])[2] == SIZE
        assert s.peers[0].asked == 2
