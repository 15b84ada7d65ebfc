"""Large models of nodes on this machine are folded together. The limit is lowered, so that small ones are large."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedgsp import wire
from fedgsp.means.averages import Mean
from fedgsp.means.block_mean import BlockMean
from fedgsp.messages import (
    FailureCode,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelHeader,
    ModelRef,
)
from fedgsp.security.access import shown
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers import chunks, model_calls
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc
from fedgsp_node import trainer
from fedgsp_node.connections import attachment
from group_manager.group import Group
from group_manager.programs import together
from tests.support.blobs_task import Blobs
from tests.support.real_manager import START, Manager, manager, node, request
from tests.support.scripted import let_others_run
from tests.support.weights import some_weights, vector

WEIGHTS = (3.0, 1.0, 2.5)
MEMBERS = tuple(Member(client, f"n{client % 2}", "", 10 + client, None, WEIGHTS[client]) for client in range(3))


class Still(Blobs):
    """Without dropout, whose random numbers two nodes of one process would share."""

    def model(self) -> nn.Module:
        module = super().model()
        assert isinstance(module, nn.Sequential)
        module[3] = nn.Identity()
        return module


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "SPILLED_BYTES", 1)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether folding together succeeded, each time that it was tried."""
    found, real = [], together.mean

    async def mean(*args: Any) -> Any:
        made = await real(*args)
        found.append(isinstance(made, Weights))
        return made

    monkeypatch.setattr(together, "mean", mean)
    return found


@asynccontextmanager
async def two_nodes() -> AsyncIterator[Manager]:
    async with manager() as m, node(m, "n0", Still()), node(m, "n1", Still()):
        yield m


async def outcome(members: tuple[Member, ...] = MEMBERS) -> tuple[bytes, list[int], list[int], int]:
    """Digest of a group's model, the clients that are done and those that were skipped, and the bytes that came."""
    async with two_nodes() as m:
        asked = request(
            "parallel", members=members, tensors=START.tensors, start_address=m.top_address, stall_timeout_s=30
        )
        call = group_pb2_grpc.GroupServiceStub(m.channel).RunGroup(wire.encode(asked))
        kinds = [wire.decode(GroupEvent, event).kind async for event in call]
        result = kinds[-1]
        assert isinstance(result, GroupResult), result
        assert result.ref is not None
        weights = m.store.held(result.ref.id)
        assert len(m.store) == 1
        fresh = Weights(weights.tensors, weights.buffer)
        assert fresh.digest == result.ref.digest
        done = [kind.client for kind in kinds if isinstance(kind, MemberDone)]
        skipped = [kind.client for kind in kinds if isinstance(kind, MemberSkipped)]
        return result.ref.digest, done, skipped, result.bytes_relayed


async def one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, members: tuple[Member, ...] = MEMBERS
) -> tuple[bytes, list[int], list[int], int]:
    with monkeypatch.context() as patch:
        patch.setattr(together, "SPILLED_BYTES", 1 << 30)
        return await outcome(members)


async def test_the_result_and_the_reports_are_those_of_models_folded_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tried: list[bool]
) -> None:
    expected = await one_after_the_other(monkeypatch)
    assert tried == []
    assert await outcome() == expected
    assert tried == [True]
    assert expected[1:3] == ([0, 1, 2], [])


async def test_a_member_without_weight_is_left_out(monkeypatch: pytest.MonkeyPatch, tried: list[bool]) -> None:
    members = (MEMBERS[0], Member(1, "n1", "", 11), MEMBERS[2])
    assert await outcome(members) == await one_after_the_other(monkeypatch, members)
    assert tried == [True]


async def test_an_upload_that_fails_is_made_up_for(monkeypatch: pytest.MonkeyPatch, tried: list[bool]) -> None:
    expected = await one_after_the_other(monkeypatch)
    real, failed = model_calls.upload, list[str]()

    async def upload(channel: Any, model_id: str, *args: Any, **named: Any) -> None:
        if not failed:
            failed.append(model_id)
            raise WeightsError(FailureCode.BAD_STREAM, "as the test wants it")
        await real(channel, model_id, *args, **named)

    monkeypatch.setattr(attachment, "upload", upload)
    found = await outcome()
    assert found[:3] == expected[:3]
    assert tried == [False]


async def test_an_upload_that_is_cut_off_and_comes_again_puts_nothing_unchecked_into_the_mean(
    monkeypatch: pytest.MonkeyPatch, tried: list[bool]
) -> None:
    expected = await one_after_the_other(monkeypatch)
    real, junk, made = model_calls.upload, list[str](), list[together._Folding]()

    class Watched(together._Folding):
        def __init__(self, mean: BlockMean) -> None:
            super().__init__(mean)
            made.append(self)

    async def upload(channel: Any, model_id: str, weights: Weights, *args: Any, **named: Any) -> None:
        """A node that first sends other bytes than it has reported, and then those that it has reported."""
        if "/1." in model_id and not junk:
            junk.append(model_id)
            call = channel.stream_stream(f"/{chunks.SERVICE}/Upload")(metadata=shown(args[2]))
            ref = ModelRef(model_id, weights.buffer.nbytes)
            await call.write(chunks.header(ModelHeader(ref, weights.tensors, "", "", paced=True)))
            await call.write(chunks.data(np.full(len(weights.buffer) // 2, 0x7F, np.uint8).data))
            while not made[0].mean.folded:  # as far as the models of the others have come, too
                await made[0].moved()
            call.cancel()
            await let_others_run()
        await real(channel, model_id, weights, *args, **named)

    monkeypatch.setattr(attachment, "upload", upload)
    monkeypatch.setattr(together, "_Folding", Watched)
    monkeypatch.setattr(together, "STEP_BYTES", 1)
    found = await outcome()
    assert junk
    assert found[:3] == expected[:3]
    assert tried == [False]


def test_bytes_of_one_model_come_once() -> None:
    weights = some_weights(0, vector(8))
    (place,) = together._Folding(BlockMean(weights.tensors, [1])).places
    place.room(len(weights.buffer))
    with pytest.raises(WeightsError, match="an upload of it began before") as refused:
        place.room(len(weights.buffer))
    assert refused.value.failure.code is FailureCode.CANCELLED


def _another(weights: Weights) -> None:
    weights.buffer[0] ^= 1


def _not_finite(weights: Weights) -> None:
    weights.known_digest = None
    next(iter(weights.arrays.values())).flat[0] = np.nan


@pytest.mark.parametrize("spoil", [_another, _not_finite])
async def test_a_member_whose_model_is_bad_is_skipped_and_does_not_count(
    spoil: Callable[[Weights], None], monkeypatch: pytest.MonkeyPatch, tried: list[bool]
) -> None:
    """It is another model than its node reported, or it holds a value that is not finite."""
    real = trainer.publish

    async def publish(store: ModelStore, model_id: str, weights: Weights) -> Any:
        report = await real(store, model_id, weights)
        if "/1." in model_id:
            spoil(weights)
            if weights.known_digest is None:
                return type(report)(weights.ref(model_id))
        return report

    monkeypatch.setattr(trainer, "publish", publish)
    expected = await one_after_the_other(monkeypatch)
    assert expected[1:3] == ([0, 2], [1])
    found = await outcome()
    assert found[:3] == expected[:3]
    assert tried == [False]


async def test_nodes_of_another_machine_limited_updates_and_small_models_are_folded_one_after_the_other() -> None:
    async with two_nodes() as m:

        def group(**changes: Any) -> Group:
            found = object.__new__(Group)
            found.request = request("parallel", **{"members": MEMBERS, "tensors": START.tensors, **changes})
            found.members = m.members
            return found

        assert together.fits(group())
        assert not together.fits(group(most_update_ratio=2.0))
        assert not together.fits(group(tensors=()))
        assert not together.fits(group(members=MEMBERS[:1]))
        assert not together.fits(group(members=tuple(Member(c, "n0", "", 1, None, 1.0) for c in range(5))))
        m.members._sessions["n1"].near = False
        assert not together.fits(group())


async def test_a_model_waits_while_it_is_far_ahead_of_the_others() -> None:
    models = [some_weights(seed, vector(10 << 20)) for seed in range(2)]  # 40 MiB
    folding = together._Folding(BlockMean(models[0].tensors, [1, 1]))
    size, first, second = len(models[0].buffer), *folding.places

    async def fill(place: together.Place, model: Weights, step: int) -> None:
        room = place.room(size)
        for start in range(0, size, step):
            room[start : start + step] = model.buffer[start : start + step]
            await place.filled_to(min(size, start + step))

    ahead = asyncio.create_task(fill(first, models[0], 1 << 20))
    run = asyncio.create_task(folding.run())
    await let_others_run()
    assert first.filled == together.AHEAD_BYTES + (1 << 20)
    await fill(second, models[1], 3 << 20)
    await asyncio.gather(ahead, run)
    both = Mean(weighted=True)
    for model in models:
        both.fold(model)
    assert folding.mean.result().digest == both.result().digest


async def test_uploads_that_wait_end_when_the_folding_ends() -> None:
    folding = together._Folding(BlockMean(vector(10 << 20), [1, 1]))
    waiting = asyncio.create_task(folding.places[0].filled_to(40 << 20))
    await asyncio.sleep(0)
    folding.end()
    with pytest.raises(WeightsError, match="not folded together"):
        await waiting


def test_a_model_of_another_size_has_no_place() -> None:
    folding = together._Folding(BlockMean(vector(10), [1, 1]))
    with pytest.raises(WeightsError, match="bytes"):
        folding.places[0].room(41)
